"""What an operator can ask for, one function each, for the API, the command line and the console."""
