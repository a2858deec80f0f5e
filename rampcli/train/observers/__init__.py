"""What watches the loop: metrics, outliers, boundaries."""
