"""Tables, plots and explanations of plans and runs."""
