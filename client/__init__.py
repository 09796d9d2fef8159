"""The SDK: producer, consumer, admin, and what they share. Imports neither broker nor storage."""
