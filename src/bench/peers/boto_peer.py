# The AWS SDK for Python with as many threads as we have requests in flight, as Python programs use it.
#
# Arguments: the socket, the endpoint, the bucket, a key and its secret, threads. "read BYTES OBJECTS" and
# "write BYTES OBJECTS" move the objects "object/0" to "object/<OBJECTS - 1>" once each; GB/s.
import sys, time
from concurrent.futures import ThreadPoolExecutor
import boto3
from botocore.config import Config
path, endpoint, bucket, key, secret, threads = sys.argv[1:]
threads = int(threads)
client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=key,
                      aws_secret_access_key=secret,
                      config=Config(max_pool_connections=threads, s3={"addressing_style": "path"}))
pool = ThreadPoolExecutor(threads)

def read(i):
    return len(client.get_object(Bucket=bucket, Key=f"object/{i}")["Body"].read())

def write(i, body):
    client.put_object(Bucket=bucket, Key=f"object/{i}", Body=body)
    return len(body)

def answer(what, size, count):
    body = bytes(int(size))
    begin = time.perf_counter()
    if what == "read":
        total = sum(pool.map(read, range(int(count))))
    else:
        total = sum(pool.map(lambda i: write(i, body), range(int(count))))
    return total / (time.perf_counter() - begin) / 1e9

serve(path, answer)
