"""The subcommands of `combinax`, a file for each family."""
