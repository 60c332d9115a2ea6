"""The store: schema `etl` in Postgres, the only way API and runner talk."""
