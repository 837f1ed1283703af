from dynbranch.controller.main import run

if __name__ == "__main__":
    run()
