"""What a load test leaves: tables, plots and one page."""
