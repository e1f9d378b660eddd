"""Senders that put messages into queues, for other programs to take: Redis Streams, Kafka, SQS."""
