"""Tables of the user's own: CSV and Parquet files, their columns and rows, and the column to predict."""
