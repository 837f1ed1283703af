from dynbranch.csl.main import main

main()
