#include "bench/peers/boto_peer.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/bench_bucket.h"
#include "cli/unix_connection.h"

namespace aquifer {
namespace {

// Arguments: the socket to listen on, the endpoint, the bucket, a key and its secret, threads.
// Lines "read BYTES OBJECTS" and "write BYTES OBJECTS" are answered with GB/s.
constexpr const char* kProgram = R"(
import socket, sys, time
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

listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
caller = listener.accept()[0].makefile("rw")
for line in caller:
    what, size, count = line.split()
    body = bytes(int(size))
    begin = time.perf_counter()
    if what == "read":
        total = sum(pool.map(read, range(int(count))))
    else:
        total = sum(pool.map(lambda i: write(i, body), range(int(count))))
    print(total / (time.perf_counter() - begin) / 1e9, file=caller, flush=True)
)";

}  // namespace

Result<std::unique_ptr<BotoPeer>> BotoPeer::New(const BucketOptions& options) {
  const std::string python = InstalledPeer("boto3/bin/python3");
  if (python.empty()) {
    return Status(Code::kNotFound, "boto3 is not there; next step: tools/install-peers");
  }
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<ServerProcess> server,
                      ServerProcess::Start([&](const std::string& directory) {
                        return std::vector<std::string>{python,
                                                        "-c",
                                                        kProgram,
                                                        directory + "/socket",
                                                        options.endpoints.front(),
                                                        options.bucket,
                                                        options.credentials.given.access_key,
                                                        options.credentials.given.secret_key,
                                                        std::to_string(options.max_connections)};
                      }));
  Descriptor socket;
  AQ_RETURN_IF_ERROR(server->Await([&]() -> Status {
    AQ_ASSIGN_OR_RETURN(socket, ConnectToUnixSocket(server->directory() + "/socket"));
    return Status();
  }));
  return std::unique_ptr<BotoPeer>(new BotoPeer(std::move(server), std::move(socket)));
}

Result<double> BotoPeer::Measure(bool write, uint64_t object_bytes, size_t objects) {
  const std::string line =
      fmt::format("{} {} {}\n", write ? "write" : "read", object_bytes, objects);
  char answer[64] = {};
  if (::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(line.size()) ||
      ::read(socket_.get(), answer, sizeof(answer) - 1) <= 0) {
    return Status(Code::kUnavailable, "the boto3 program has ended");
  }
  return std::strtod(answer, nullptr);
}

}  // namespace aquifer
