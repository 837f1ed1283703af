from dynbranch.gateway.main import main

main()
