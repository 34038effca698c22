import sys

from .cli import main

if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:  # a second one, while `main` was answering the first
        code = 130
    sys.exit(code)
