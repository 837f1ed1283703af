"""``python -m dynbranch.engine_agent``"""

import os

# The only fork here is followed by an exec at once; gRPC's own preparations for forks would only complain.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from dynbranch.engine_agent.main import main

main()
