"""The endpoints, one noun a file. Each reads its parameters, asks the desk one question, and sends what comes back."""
