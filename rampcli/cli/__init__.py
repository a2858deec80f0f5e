"""The commands: thin. They read words, call the floors below and show what came back."""
