"""PostgreSQL through psycopg 3: needs `onceward[postgres]`."""
