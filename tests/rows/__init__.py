"""The rows of the table in ``cases``, one file a subject."""
