"""What people see: explain, try, the overview of the inbox, metrics, alerts, logs."""
