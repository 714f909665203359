"""What people see: explain, try, the survey of the inbox, metrics, alerts, logs."""
