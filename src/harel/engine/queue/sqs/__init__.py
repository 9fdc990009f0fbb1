"""The queue on Amazon SQS FIFO, without I/O."""
