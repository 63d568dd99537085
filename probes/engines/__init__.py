"""What is wrapped in inference engines and libraries, one file each."""
