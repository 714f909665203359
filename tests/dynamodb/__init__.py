"""The DynamoDB store, on DynamoDB Local and on moto."""
