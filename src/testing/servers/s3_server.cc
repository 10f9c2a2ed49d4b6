#include "testing/servers/s3_server.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "testing/fault_proxy.h"

namespace aquifer {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);
constexpr const char* kAccessKey = "aquifer-tests";
constexpr const char* kSecretKey = "not-a-secret-at-all";

std::vector<std::string> VersityCommand(const S3ServerOptions& options, uint16_t port,
                                        const std::string& directory) {
  std::vector<std::string> words = {"env",
                                    fmt::format("ROOT_ACCESS_KEY={}", kAccessKey),
                                    fmt::format("ROOT_SECRET_KEY={}", kSecretKey),
                                    S3Server::ProgramPath(S3Program::kVersity),
                                    "--quiet",
                                    "--keep-alive",
                                    "--region",
                                    options.region,
                                    "--port",
                                    fmt::format("127.0.0.1:{}", port)};
  if (!options.certificate_file.empty()) {
    words.insert(words.end(), {"--cert", options.certificate_file, "--key", options.key_file});
  }
  words.emplace_back("posix");
  if (!options.in_attributes) words.insert(words.end(), {"--sidecar", directory + "/meta"});
  words.push_back(directory + "/data");
  return words;
}

std::vector<std::string> MinioCommand(const S3ServerOptions& options, uint16_t port,
                                      const std::string& directory) {
  std::vector<std::string> words = {"env", fmt::format("MINIO_ROOT_USER={}", kAccessKey),
                                    fmt::format("MINIO_ROOT_PASSWORD={}", kSecretKey),
                                    fmt::format("MINIO_REGION={}", options.region),
                                    "MINIO_BROWSER=off"};
  words.insert(words.end(), options.environment.begin(), options.environment.end());
  words.insert(words.end(), {S3Server::ProgramPath(S3Program::kMinio), "server", "--quiet",
                             "--address", fmt::format("127.0.0.1:{}", port)});
  if (!options.certificate_file.empty()) {  // versitygw and MinIO know the files by these names.
    const std::string folder = directory + "/certs";
    std::filesystem::create_directories(folder);
    const auto overwrite = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(options.certificate_file, folder + "/public.crt", overwrite);
    std::filesystem::copy_file(options.key_file, folder + "/private.key", overwrite);
    words.insert(words.end(), {"--certs-dir", folder});
  }
  words.push_back(directory + "/data");
  return words;
}

}  // namespace

std::string S3Server::ProgramPath(S3Program program) {
  const std::string path = fmt::format("{}/{}", AQUIFER_TOOLS_DIR,
                                       program == S3Program::kVersity ? "versitygw" : "minio");
  return ::access(path.c_str(), X_OK) == 0 ? path : std::string();
}

bool S3Server::HasAttributes() {
  const ScratchDirectory directory;
  return ::setxattr(directory.path().c_str(), "user.aquifer", "1", 1, 0) == 0;
}

S3Server::S3Server(const S3ServerOptions& options) : options_(options), port_(FreePort()) {
  AQ_CHECK(::mkdir(directory_.Sub("data").c_str(), 0700) == 0);
  AQ_CHECK(::mkdir(directory_.Sub("meta").c_str(), 0700) == 0);
  if (options_.data_bytes > 0) {
    const std::string size = fmt::format("size={}", options_.data_bytes);
    mounted_ = ::mount("none", directory_.Sub("data").c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  Start();
  AQ_CHECK(MakeBucket());
}

S3Server::~S3Server() {
  process_.reset();
  if (mounted_) ::umount2(directory_.Sub("data").c_str(), MNT_DETACH);
}

std::string S3Server::url() const {
  return fmt::format("{}://127.0.0.1:{}", options_.certificate_file.empty() ? "http" : "https",
                     port_);
}

BucketOptions S3Server::OptionsFor(const std::string& url) {
  BucketOptions options;
  options.endpoints = {url};
  options.bucket = kBucket;
  options.credentials.given = {
      .access_key = kAccessKey, .secret_key = kSecretKey, .session_token = {}};
  return options;
}

BucketOptions S3Server::Options(uint16_t port) const {
  BucketOptions options = OptionsFor(port == 0 ? url() : fmt::format("http://127.0.0.1:{}", port));
  options.region = options_.region;
  options.ca_file = options_.certificate_file;
  return options;
}

void S3Server::Kill() {
  process_->Kill();
  process_->Wait();
}

void S3Server::Start() {
  std::vector<std::string> words = {"setpriv", "--pdeathsig", "KILL"};
  const std::vector<std::string> command = options_.program == S3Program::kVersity
                                               ? VersityCommand(options_, port_, directory_.path())
                                               : MinioCommand(options_, port_, directory_.path());
  words.insert(words.end(), command.begin(), command.end());
  process_ = ChildProcess::StartCommand(std::move(words));
  auto bucket = NewBucket(Options(), SystemClock(), SystemRandom());
  AQ_CHECK(bucket.ok());
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    S3Request hello{.method = "GET", .key = {}, .query = {{"location", ""}}};
    [[maybe_unused]] const Status status = DoS3(bucket->get(), &hello);
    if (hello.http_status != 0 && hello.http_status != 503) return;  // Also to say "no bucket".
    AQ_CHECK(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool S3Server::MakeBucket() const {
  auto bucket = NewBucket(Options(), SystemClock(), SystemRandom());
  AQ_CHECK(bucket.ok());
  S3Request make{.method = "PUT", .key = {}};
  return DoS3(bucket->get(), &make).ok();
}

void S3Server::DestroyBucket() const {
  std::filesystem::remove_all(directory_.Sub("data/") + kBucket);
  std::filesystem::remove_all(directory_.Sub("meta/") + kBucket);
}

std::string S3Server::PathOf(const std::string& key) const {
  return directory_.Sub("data/") + kBucket + "/" + key;
}

Status DoS3(Bucket* bucket, S3Request* request) {
  std::promise<Status> done;
  request->on_done = [&](S3Request& answered) { done.set_value(answered.status); };
  bucket->Submit(request);
  return done.get_future().get();
}

}  // namespace aquifer
