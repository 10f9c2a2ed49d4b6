#include "bench/peers/bench_bucket.h"

#include <fmt/format.h>

#include <filesystem>
#include <future>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "cli/find_program.h"

namespace aquifer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBucket = "kv-bench";
constexpr const char* kAccessKey = "bench";
constexpr const char* kSecretKey = "of-a-server-that-lives-for-a-minute";

Status MakeBucket(const BucketOptions& options) {
  AQ_ASSIGN_OR_RETURN(const std::unique_ptr<Bucket> bucket,
                      NewBucket(options, SystemClock(), SystemRandom()));
  std::promise<Status> done;
  S3Request make{.method = "PUT",
                 .on_done = [&](S3Request& request) { done.set_value(request.status); }};
  bucket->Submit(&make);
  return done.get_future().get();
}

}  // namespace

std::string BenchBucket::ServerProgram() {
  const std::string in_path = FindProgram("versitygw");
  return in_path.empty() ? InstalledPeer("versitygw") : in_path;
}

Result<std::unique_ptr<BenchBucket>> BenchBucket::New(const std::string& directory) {
  AQ_ASSIGN_OR_RETURN(const uint16_t port, FreeLoopbackPort());
  BucketOptions options;
  options.endpoints = {fmt::format("http://127.0.0.1:{}", port)};
  options.bucket = kBucket;
  options.max_connections = 16;
  options.credentials.given = {
      .access_key = kAccessKey, .secret_key = kSecretKey, .session_token = {}};
  const std::string folder = fmt::format("{}/s3-{}", directory, port);
  std::error_code error;
  fs::create_directories(folder + "/data", error);
  fs::create_directories(folder + "/meta", error);
  AQ_ASSIGN_OR_RETURN(
      std::unique_ptr<ServerProcess> server, ServerProcess::Start([&](const std::string&) {
        return std::vector<std::string>{"env",
                                        fmt::format("ROOT_ACCESS_KEY={}", kAccessKey),
                                        fmt::format("ROOT_SECRET_KEY={}", kSecretKey),
                                        ServerProgram(),
                                        "--quiet",
                                        "--keep-alive",
                                        "--port",
                                        fmt::format("127.0.0.1:{}", port),
                                        "posix",
                                        "--sidecar",
                                        folder + "/meta",
                                        folder + "/data"};
      }));
  AQ_RETURN_IF_ERROR(server->Await([&] { return MakeBucket(options); }));
  return std::unique_ptr<BenchBucket>(new BenchBucket(std::move(server), std::move(options)));
}

}  // namespace aquifer
