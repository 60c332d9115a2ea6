"""Apache Airflow provider for Vitrine."""
