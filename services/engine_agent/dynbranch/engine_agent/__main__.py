"""``python -m dynbranch.engine_agent``"""

from dynbranch.engine_agent.main import main

main()
