"""The SDK: clients, futures, retries and limits. Nothing here knows the service's insides."""
