"""What the command `combinax` can do, a file for each family of its subcommands."""
