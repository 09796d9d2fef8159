"""The SDK: producer, consumer, admin, workers and transformers. Imports neither broker nor storage."""
