"""Files of data wherever they lie: addresses, retries, a cache of their blocks on this host, and indexes."""
