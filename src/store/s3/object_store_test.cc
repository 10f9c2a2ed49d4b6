// Tests the S3 store against a real server: the contract, and every failure between the two. A
// scripted server plays what real ones do rarely.
#include "store/s3/object_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/blob_store_contract.h"
#include "testing/blob_caller.h"
#include "testing/child_process.h"
#include "testing/fault_proxy.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "testing/servers/s3_server.h"
#include "testing/servers/scripted_http.h"
#include "testing/servers/test_certificate.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kHeadBytes = 4096;
constexpr const char* kWriterFlag = "--write-blobs";

#define SKIP_WITHOUT_SERVER()                                                     \
  if (S3Server::ProgramPath(S3Program::kVersity).empty()) {                       \
    GTEST_SKIP() << "versitygw is not installed; next step: tools/install-peers"; \
  }

// One server for the whole program: starting it takes longer than most tests. Tests that damage a
// server have their own.
S3Server& SharedServer(S3Program program) {
  static std::array<std::unique_ptr<S3Server>, 2> servers;
  auto& server = servers[static_cast<size_t>(program)];
  if (server == nullptr) server = std::make_unique<S3Server>(S3ServerOptions{.program = program});
  return *server;
}

class ServerHarness final : public BlobStoreHarness {
 public:
  explicit ServerHarness(S3Program program)
      : server_(&SharedServer(program)), program_(program), proxy_(server_->port()) {
    static int harnesses = 0;
    prefix_ = fmt::format("harness/{}-{}/", static_cast<int>(program), harnesses++);
  }

  std::unique_ptr<BlobStore> Open(size_t max_queued) override {
    BucketOptions options = server_->Options(proxy_.port());
    options.prefix = prefix_;
    options.max_queued = max_queued;
    options.max_connections = 8;
    auto store = NewObjectStore(options, SystemClock(), SystemRandom());
    AQ_CHECK(store.ok());
    return *std::move(store);
  }
  int64_t NowNanos() override { return SystemClock()->NowNanos(); }
  bool RunUntil(const std::function<bool()>& done) override {
    const int64_t end = NowNanos() + 30 * kSecond;
    while (!done()) {
      if (NowNanos() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }
  bool Hang(bool on) override {
    proxy_.Set({.stall = on});
    return true;
  }
  bool Disconnect(bool on) override {
    proxy_.Set({.refuse = on});
    return true;
  }
  bool CutShort(const std::string& name, uint64_t bytes) override {
    if (program_ != S3Program::kVersity) return false;
    std::filesystem::resize_file(server_->PathOf(prefix_ + name), bytes);
    return true;
  }

 private:
  S3Server* const server_;
  const S3Program program_;
  FaultProxy proxy_;
  std::string prefix_;
};

std::vector<BlobStoreParam> Params() {
  std::vector<BlobStoreParam> params;
  if (!S3Server::ProgramPath(S3Program::kVersity).empty()) {
    params.push_back({.name = "Versity",
                      .make = [] { return std::make_unique<ServerHarness>(S3Program::kVersity); }});
  }
  if (IsFullRun() && !S3Server::ProgramPath(S3Program::kMinio).empty()) {
    params.push_back({.name = "Minio",
                      .make = [] { return std::make_unique<ServerHarness>(S3Program::kMinio); }});
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(S3, BlobStoreContract, testing::ValuesIn(Params()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BlobStoreContract);

TEST(ObjectStoreServersTest, TheServersAreInstalled) {
  SKIP_WITHOUT_SERVER();
  if (IsFullRun() && S3Server::ProgramPath(S3Program::kMinio).empty()) {
    GTEST_SKIP()
        << "MinIO is not installed; next step: AQUIFER_TEST_LEVEL=full tools/install-peers";
  }
}

// Writes and reads blobs of one size, made from a seed, and waits for each answer.
class Client {
 public:
  explicit Client(const BucketOptions& options, Clock* clock = SystemClock())
      : store_(*NewObjectStore(options, clock, SystemRandom())) {}

  struct Answer {
    Status status;
    bool existed = false;
    std::vector<std::byte> bytes{};
  };

  static std::vector<std::byte> Bytes(uint64_t seed, size_t size) {
    std::vector<std::byte> bytes(size);
    SeededRandom(seed).Fill(bytes);
    return bytes;
  }

  Answer Write(const std::string& name, uint64_t seed, size_t size, bool if_absent = true) {
    std::vector<std::byte> bytes = Bytes(seed, size);
    BlobRequest request{.kind = BlobKind::kWrite,
                        .name = name,
                        .head = std::span(bytes).first(kHeadBytes),
                        .body = std::span(bytes).subspan(kHeadBytes),
                        .body_bytes = size - kHeadBytes,
                        .if_absent = if_absent,
                        .deadline_nanos = Deadline()};
    Status status = Do(&request);
    return {std::move(status), request.existed};
  }
  Answer Read(const std::string& name, size_t size) {
    std::vector<std::byte> bytes(size);
    BlobRequest request{.name = name,
                        .head = std::span(bytes).first(kHeadBytes),
                        .body = std::span(bytes).subspan(kHeadBytes),
                        .deadline_nanos = Deadline()};
    Status status = Do(&request);
    return {std::move(status), false, std::move(bytes)};
  }
  Status Look(const std::string& name) {
    BlobRequest request{.kind = BlobKind::kLook, .name = name, .deadline_nanos = Deadline()};
    return Do(&request);
  }
  Status Remove(const std::string& name) {
    BlobRequest request{.kind = BlobKind::kRemove, .name = name, .deadline_nanos = Deadline()};
    return Do(&request);
  }

  uint64_t Count(std::string_view name) const {
    for (const auto& [known, value] : store_->Counters()) {
      if (known == name) return value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }
  Status Do(BlobRequest* request) {
    std::promise<void> done;
    request->on_done = [&](BlobRequest&) { done.set_value(); };
    store_->Submit(request);
    done.get_future().wait();
    return request->status;
  }
  BlobStore* store() { return store_.get(); }
  void set_deadline(int64_t nanos) { timeout_nanos_ = nanos; }

 private:
  int64_t Deadline() const { return SystemClock()->NowNanos() + timeout_nanos_; }
  std::unique_ptr<BlobStore> store_;
  int64_t timeout_nanos_ = 30 * kSecond;
};

constexpr size_t kBlobBytes = size_t{512} << 10;

bool Contains(const Status& status, std::string_view words) {
  return status.message().find(words) != std::string::npos;
}

TEST(ObjectStoreFaultsTest, AServerThatIsKilledIsUnavailableAndServesAgainByItself) {
  SKIP_WITHOUT_SERVER();
  S3Server server;
  Client client(server.Options());
  ASSERT_TRUE(client.Write("a", 1, kBlobBytes).status.ok());
  server.Kill();
  const Status gone = client.Read("a", kBlobBytes).status;
  EXPECT_EQ(gone.code(), Code::kUnavailable) << gone.ToString();
  EXPECT_TRUE(Contains(gone, "see that the server runs")) << gone.ToString();
  server.Start();
  const Client::Answer back = client.Read("a", kBlobBytes);
  EXPECT_TRUE(back.status.ok()) << back.status.ToString();
  EXPECT_EQ(back.bytes, Client::Bytes(1, kBlobBytes));
}

TEST(ObjectStoreFaultsTest, AConnectionThatIsCutOrEndsInMidBodyIsTriedAgain) {
  SKIP_WITHOUT_SERVER();
  S3Server& server = SharedServer(S3Program::kVersity);
  FaultProxy proxy(server.port());
  Client client(server.Options(proxy.port()));
  ASSERT_TRUE(client.Write("cut", 1, kBlobBytes).status.ok());
  const ProxyFaults faults[] = {{.cut_answers_after = 200'000, .times = 1},
                                {.end_answers_after = 200'000, .times = 1},
                                {.end_answers_after = 100, .times = 2}};
  uint64_t happened = 0;
  for (const ProxyFaults& fault : faults) {
    proxy.Set(fault);
    const Client::Answer answer = client.Read("cut", kBlobBytes);
    EXPECT_TRUE(answer.status.ok()) << answer.status.ToString();
    EXPECT_EQ(answer.bytes, Client::Bytes(1, kBlobBytes));
    happened += fault.times;
    EXPECT_EQ(proxy.faults_happened(), happened);
  }
  EXPECT_GE(client.Count("retries"), 3u);
  proxy.Set({.cut_requests_after = 100'000, .times = 1});
  EXPECT_TRUE(client.Write("cut-write", 2, kBlobBytes).status.ok());
  proxy.Set({});
  EXPECT_EQ(client.Read("cut-write", kBlobBytes).bytes, Client::Bytes(2, kBlobBytes));
}

TEST(ObjectStoreFaultsTest, ABodyThatIsAlwaysCutIsNeverTakenForWhole) {
  SKIP_WITHOUT_SERVER();
  S3Server& server = SharedServer(S3Program::kVersity);
  FaultProxy proxy(server.port());
  Client client(server.Options(proxy.port()));
  ASSERT_TRUE(client.Write("always-cut", 1, kBlobBytes).status.ok());
  for (const ProxyFaults& fault :
       {ProxyFaults{.cut_answers_after = 300'000}, ProxyFaults{.end_answers_after = 300'000}}) {
    proxy.Set(fault);
    const Status status = client.Read("always-cut", kBlobBytes).status;
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  }
  proxy.Set({});
  EXPECT_TRUE(client.Read("always-cut", kBlobBytes).status.ok());
}

TEST(ObjectStoreFaultsTest, WhereverABitOfAnAnswerFlipsTheRequestEnds) {
  SKIP_WITHOUT_SERVER();
  S3Server& server = SharedServer(S3Program::kVersity);
  FaultProxy proxy(server.port());
  Client client(server.Options(proxy.port()));
  ASSERT_TRUE(client.Write("flip", 1, kHeadBytes).status.ok());
  client.set_deadline(kSecond);
  const uint64_t step = ByTestLevel<uint64_t>(37, 11, 1);
  for (uint64_t at = 0; at < 600; at += step) {
    proxy.Set({.flip_answer_byte = at, .times = 1});
    const Client::Answer answer = client.Read("flip", kBlobBytes);  // Any status will do.
    EXPECT_NE(answer.status.code(), Code::kInvalid);
  }
  proxy.Set({});
  EXPECT_EQ(client.Read("flip", kHeadBytes).bytes, Client::Bytes(1, kHeadBytes));
}

TEST(ObjectStoreFaultsTest, AStallEndsByTheDeadlineAndServiceResumes) {
  SKIP_WITHOUT_SERVER();
  S3Server& server = SharedServer(S3Program::kVersity);
  FaultProxy proxy(server.port());
  Client client(server.Options(proxy.port()));
  ASSERT_TRUE(client.Write("stall", 1, kBlobBytes).status.ok());
  proxy.Set({.stall = true});
  client.set_deadline(kSecond / 5);
  EXPECT_EQ(client.Read("stall", kBlobBytes).status.code(), Code::kLate);
  EXPECT_EQ(client.Write("stall-2", 1, kBlobBytes).status.code(), Code::kLate);
  EXPECT_EQ(client.Look("stall").code(), Code::kLate);
  EXPECT_EQ(client.Count("late"), 3u);
  proxy.Set({});
  client.set_deadline(30 * kSecond);
  EXPECT_TRUE(client.Read("stall", kBlobBytes).status.ok());
}

TEST(ObjectStoreFaultsTest, WithSeveralEndpointsTheNextOneIsAsked) {
  SKIP_WITHOUT_SERVER();
  S3Server& server = SharedServer(S3Program::kVersity);
  FaultProxy first(server.port());
  FaultProxy second(server.port());
  BucketOptions options = server.Options(first.port());
  options.endpoints.push_back(fmt::format("http://127.0.0.1:{}", second.port()));
  Client client(options);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(client.Write(fmt::format("spread/{}", i), 1, kHeadBytes).status.ok());
  }
  EXPECT_GE(first.connections(), 1u);
  EXPECT_GE(second.connections(), 1u);
  first.Set({.refuse = true});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(client.Read(fmt::format("spread/{}", i), kHeadBytes).status.ok());
  }
  EXPECT_GE(client.Count("failovers"), 1u);
}

TEST(ObjectStoreFaultsTest, WrongCredentialsAreSaidWithoutSayingThem) {
  SKIP_WITHOUT_SERVER();
  BucketOptions options = SharedServer(S3Program::kVersity).Options();
  options.credentials.given.secret_key = "hunter2-hunter2";
  const Status wrong_secret = Client(options).Write("denied", 1, kHeadBytes).status;
  EXPECT_EQ(wrong_secret.code(), Code::kUnavailable);
  EXPECT_TRUE(Contains(wrong_secret, "correct the secret key")) << wrong_secret.ToString();
  EXPECT_FALSE(Contains(wrong_secret, "hunter2"));
  options.credentials.given.access_key = "nobody";
  const Status wrong_key = Client(options).Write("denied", 1, kHeadBytes).status;
  EXPECT_TRUE(Contains(wrong_key, "does not know our access key")) << wrong_key.ToString();
  EXPECT_FALSE(Client(options).Look("denied").ok());
}

class SkewedClock final : public Clock {
 public:
  explicit SkewedClock(int64_t seconds) : seconds_(seconds) {}
  int64_t NowNanos() const override { return SystemClock()->NowNanos(); }
  int64_t UnixMicros() const override { return SystemClock()->UnixMicros() + seconds_ * 1'000'000; }

 private:
  const int64_t seconds_;
};

TEST(ObjectStoreFaultsTest, AClockThatIsWrongIsCorrectedByTheServersAndTold) {
  SKIP_WITHOUT_SERVER();
  const BucketOptions options = SharedServer(S3Program::kVersity).Options();
  for (const int64_t seconds : {7200, -7200}) {
    SkewedClock clock(seconds);
    Client client(options, &clock);
    const std::string name = seconds > 0 ? "skew/ahead" : "skew/behind";
    EXPECT_EQ(client.Look(name).code(), Code::kNotFound);  // HEAD: no room for a reason.
    EXPECT_TRUE(client.Write(name, 1, kHeadBytes).status.ok());
    EXPECT_TRUE(client.Read(name, kHeadBytes).status.ok());
    EXPECT_EQ(client.Count("clock_corrections"), 1u);
    EXPECT_NE(client.store()->Describe().find(seconds > 0 ? "ahead of" : "behind"),
              std::string::npos)
        << client.store()->Describe();
    EXPECT_NEAR(static_cast<double>(client.store()->ClockAheadSeconds()),
                static_cast<double>(-seconds), 5);
  }
  // The difference is too small for the server to refuse it.
  SkewedClock clock(120);
  Client client(options, &clock);
  EXPECT_EQ(client.Look("skew/slightly").code(), Code::kNotFound);
  EXPECT_EQ(client.Count("clock_corrections"), 0u);
  EXPECT_NEAR(static_cast<double>(client.store()->ClockAheadSeconds()), -120.0, 5);
}

TEST(ObjectStoreFaultsTest, ABucketThatIsDeletedUnderneathIsSaidAndMayComeBack) {
  SKIP_WITHOUT_SERVER();
  S3Server server;
  Client client(server.Options());
  ASSERT_TRUE(client.Write("a", 1, kHeadBytes).status.ok());
  server.DestroyBucket();
  const Status read = client.Read("a", kHeadBytes).status;
  EXPECT_EQ(read.code(), Code::kUnavailable) << read.ToString();
  EXPECT_TRUE(Contains(read, "there is no bucket 'kv-cache'")) << read.ToString();
  EXPECT_EQ(client.Write("b", 1, kHeadBytes).status.code(), Code::kUnavailable);
  // A tier looks for a blob to find out whether its store is there: a miss would say that it is.
  const Status look = client.Look("a");
  EXPECT_EQ(look.code(), Code::kUnavailable) << look.ToString();
  EXPECT_TRUE(Contains(look, "there is no bucket 'kv-cache'")) << look.ToString();
  ASSERT_TRUE(server.MakeBucket());
  EXPECT_EQ(client.Look("a").code(), Code::kNotFound);
  EXPECT_EQ(client.Read("a", kHeadBytes).status.code(), Code::kNotFound);
  EXPECT_TRUE(client.Write("b", 1, kHeadBytes).status.ok());
}

TEST(ObjectStoreFaultsTest, AFullServerHasNoSpaceUntilSomethingIsRemoved) {
  SKIP_WITHOUT_SERVER();
  const S3Server server({.data_bytes = uint64_t{4} << 20});
  if (!server.limited()) GTEST_SKIP() << "no file system could be mounted";
  Client client(server.Options());
  int written = 0;
  Status status;
  while (written < 20 && status.ok()) {
    status = client.Write(fmt::format("full/{}", written), 1, kBlobBytes).status;
    if (status.ok()) ++written;
  }
  EXPECT_EQ(status.code(), Code::kNoSpace) << status.ToString();
  ASSERT_GE(written, 4);
  EXPECT_EQ(client.Read(fmt::format("full/{}", written), kBlobBytes).status.code(),
            Code::kNotFound);
  EXPECT_EQ(client.Read("full/0", kBlobBytes).bytes, Client::Bytes(1, kBlobBytes));
  EXPECT_TRUE(client.Remove("full/0").ok());
  EXPECT_TRUE(client.Remove("full/1").ok());
  EXPECT_TRUE(client.Write("full/again", 2, kBlobBytes).status.ok());
}

TEST(ObjectStoreFaultsTest, TheWrongRegionIsSaidWithTheRightOne) {
  SKIP_WITHOUT_SERVER();
  const S3Server server({.region = "eu-north-1"});
  BucketOptions options = server.Options();
  EXPECT_TRUE(Client(options).Write("a", 1, kHeadBytes).status.ok());
  options.region = "us-east-1";
  const Status status = Client(options).Write("a", 1, kHeadBytes).status;
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_TRUE(Contains(status, "eu-north-1")) << status.ToString();
}

TEST(ObjectStoreFaultsTest, TlsNeedsACertificateThatWeTrust) {
  SKIP_WITHOUT_SERVER();
  const ScratchDirectory directory;
  WriteTestCertificate(directory.Sub("cert.pem"), directory.Sub("key.pem"));
  const S3Server server(
      {.certificate_file = directory.Sub("cert.pem"), .key_file = directory.Sub("key.pem")});
  BucketOptions options = server.Options();
  Client client(options);
  EXPECT_TRUE(client.Write("tls", 1, kBlobBytes).status.ok());
  EXPECT_EQ(client.Read("tls", kBlobBytes).bytes, Client::Bytes(1, kBlobBytes));
  options.ca_file.clear();
  const Status status = Client(options).Read("tls", kBlobBytes).status;
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_TRUE(Contains(status, "ca_file")) << status.ToString();
}

TEST(ObjectStoreFaultsTest, TlsAndPlainServersThatAreTakenForEachOtherAreTold) {
  SKIP_WITHOUT_SERVER();
  const ScratchDirectory directory;
  WriteTestCertificate(directory.Sub("cert.pem"), directory.Sub("key.pem"));
  for (const S3Program program : {S3Program::kVersity, S3Program::kMinio}) {
    if (program == S3Program::kMinio && !IsFullRun()) continue;
    if (S3Server::ProgramPath(program).empty()) continue;
    const S3Server plain({.program = program});
    const S3Server secure({.program = program,
                           .certificate_file = directory.Sub("cert.pem"),
                           .key_file = directory.Sub("key.pem")});
    BucketOptions options = secure.Options();
    options.endpoints = {fmt::format("https://127.0.0.1:{}", plain.port())};
    for (const Status& status :
         {Client(options).Write("a", 1, kBlobBytes).status, Client(options).Look("a")}) {
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_TRUE(Contains(status, "does not speak TLS")) << status.ToString();
      EXPECT_TRUE(Contains(status, "write http://")) << status.ToString();
    }
    options.endpoints = {fmt::format("http://127.0.0.1:{}", secure.port())};
    for (const Status& status :
         {Client(options).Write("a", 1, kBlobBytes).status, Client(options).Look("a")}) {
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_TRUE(Contains(status, "next step: if that port is for TLS, write https://"))
          << status.ToString();
    }
  }
}

BucketOptions OptionsFor(const ScriptedHttp& server) {
  BucketOptions options;
  options.endpoints = {server.url()};
  options.bucket = "kv-cache";
  options.credentials.given = {.access_key = "a", .secret_key = "b", .session_token = {}};
  return options;
}

TEST(ObjectStoreConditionsTest, AServerWithoutConditionsIsAskedFirst) {
  std::atomic<int> puts = 0;
  std::atomic<bool> there = false;
  const ScriptedHttp server([&](const HttpQuestion& question) -> HttpReply {
    if (question.method == "HEAD") return {.status = there ? 200 : 404};
    if (question.headers.contains("if-none-match")) {
      return {.status = 501, .body = "<Error><Code>NotImplemented</Code></Error>"};
    }
    ++puts;
    there = true;
    return {};
  });
  Client client(OptionsFor(server));
  const Client::Answer first = client.Write("a", 1, kHeadBytes);
  EXPECT_TRUE(first.status.ok()) << first.status.ToString();
  EXPECT_FALSE(first.existed);
  EXPECT_TRUE(client.Write("a", 2, kHeadBytes).existed);
  EXPECT_EQ(puts, 1);
  EXPECT_NE(client.store()->Describe().find("conditional"), std::string::npos);
}

// An answer to HEAD is a bare 404 in both cases.
TEST(ObjectStoreLooksTest, ALookTellsAMissingBucketFromAMissingObject) {
  std::atomic<bool> bucket = false;
  std::atomic<bool> object = false;
  const ScriptedHttp server([&](const HttpQuestion& question) -> HttpReply {
    if (bucket && object) {
      const bool ranged = question.headers.contains("range");
      return {.status = ranged ? 206 : 200,
              .headers = ranged ? "content-range: bytes 0-0/2101248\r\n" : "",
              .body = "x"};
    }
    return {.status = 404,
            .body = fmt::format("<Error><Code>{}</Code></Error>",
                                bucket ? "NoSuchKey" : "NoSuchBucket")};
  });
  Client client(OptionsFor(server));
  const Status missing = client.Look("a");
  EXPECT_EQ(missing.code(), Code::kUnavailable) << missing.ToString();
  EXPECT_TRUE(Contains(missing, "there is no bucket 'kv-cache'")) << missing.ToString();
  bucket = true;
  EXPECT_EQ(client.Look("a").code(), Code::kNotFound);
  object = true;
  BlobRequest look{.kind = BlobKind::kLook, .name = "a"};
  EXPECT_TRUE(client.Do(&look).ok()) << look.status.ToString();
  EXPECT_EQ(look.blob_bytes, 2'101'248u);
}

// The server is stopped after the first byte, and the length is known all the same.
TEST(ObjectStoreLooksTest, AServerWithoutRangesIsLookedAtToo) {
  const ScriptedHttp server(
      [](const HttpQuestion&) -> HttpReply { return {.body = std::string(100'000, 'x')}; });
  Client client(OptionsFor(server));
  BlobRequest look{.kind = BlobKind::kLook, .name = "a"};
  EXPECT_TRUE(client.Do(&look).ok()) << look.status.ToString();
  EXPECT_EQ(look.blob_bytes, 100'000u);
}

// An object that replaced it during the look is removed too, unless the caller meant a certain one.
TEST(ObjectStoreConditionsTest, AnObjectReplacedMeanwhileIsRemovedUnlessTheOtherWasMeant) {
  std::atomic<int> version = 1;
  std::atomic<int> deletes = 0;
  std::atomic<bool> there = true;
  const ScriptedHttp server([&](const HttpQuestion& question) -> HttpReply {
    const std::string etag = fmt::format("\"v{}\"", version.load());
    if (!there) return {.status = 404};
    if (question.method == "HEAD") return {.headers = fmt::format("ETag: {}\r\n", etag)};
    if (question.method == "GET") {
      return {.status = 206,
              .headers = fmt::format("ETag: {}\r\ncontent-range: bytes 0-0/1\r\n", etag),
              .body = "x"};
    }
    const bool replaced = ++deletes == 1 && ++version > 0;
    if (replaced || question.headers.at("if-match") != etag) return {.status = 412};
    there = false;
    return {.status = 204};
  });
  BucketOptions options;
  options.endpoints = {server.url()};
  options.bucket = "kv-cache";
  options.credentials.given = {.access_key = "a", .secret_key = "b", .session_token = {}};
  Client client(options);
  const BlobCaller caller(client.store());
  const BlobRequest look = caller.Do({.kind = BlobKind::kLook, .name = "a"});
  EXPECT_EQ(look.version, "\"v1\"");
  const Status other =
      caller.Do({.kind = BlobKind::kRemove, .name = "a", .version = look.version}).status;
  EXPECT_EQ(other.code(), Code::kNotFound) << other.ToString();
  EXPECT_TRUE(there);
  EXPECT_EQ(deletes, 1);
  deletes = 0;
  const Status removed = client.Remove("a");
  EXPECT_TRUE(removed.ok()) << removed.ToString();
  EXPECT_FALSE(there);
  EXPECT_EQ(deletes, 2);
  EXPECT_EQ(client.Remove("a").code(), Code::kNotFound);
}

constexpr int kWriters = 8;
constexpr int kContestedNames = 24;

std::string ContestedName(int number) { return fmt::format("contest/{}", number); }
uint64_t ContestSeed(int writer, int number) {
  return static_cast<uint64_t>(writer) * 1000 + static_cast<uint64_t>(number);
}

// Runs in a process of its own: prints which names it was the one to write, and which to remove.
int RunWriter(const std::string& port, int writer) {
  DieWithParent();
  BucketOptions options = S3Server::OptionsFor(fmt::format("http://127.0.0.1:{}", port));
  Client client(options);
  TellParent("ready");
  while (const auto command = HearParent()) {
    std::string told;
    for (int i = 0; i < kContestedNames; ++i) {
      const int number = (i + writer * 3) % kContestedNames;
      if (*command == "write") {
        const Client::Answer answer =
            client.Write(ContestedName(number), ContestSeed(writer, number), 64 * 1024);
        AQ_CHECK(answer.status.ok());
        if (!answer.existed) told += fmt::format(" {}", number);
      } else if (client.Remove(ContestedName(number)).ok()) {
        told += fmt::format(" {}", number);
      }
    }
    TellParent(*command + told);
  }
  return 0;
}

std::vector<int> NumbersIn(const std::string& line) {
  std::istringstream words(
      line.substr(line.find(' ') == std::string::npos ? line.size() : line.find(' ')));
  std::vector<int> numbers;
  for (int number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

TEST(ObjectStoreProcessesTest, OfEightWhoWriteANameOneDoesAndEveryOtherIsTold) {
  SKIP_WITHOUT_SERVER();
  S3Server& server = SharedServer(S3Program::kVersity);
  std::vector<std::unique_ptr<ChildProcess>> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.push_back(
        ChildProcess::Start({kWriterFlag, std::to_string(server.port()), std::to_string(i)}));
  }
  for (auto& writer : writers) ASSERT_TRUE(writer->ReadUntil("ready", milliseconds(30'000)));
  Client reader(server.Options());
  for (int round = 0; round < ByTestLevel(1, 2, 10); ++round) {
    for (auto& writer : writers) writer->Tell("write");
    std::map<int, int> winners;
    for (int i = 0; i < kWriters; ++i) {
      const auto line = writers[static_cast<size_t>(i)]->ReadUntil("write", milliseconds(60'000));
      ASSERT_TRUE(line.has_value());
      for (const int number : NumbersIn(*line)) {
        EXPECT_TRUE(winners.emplace(number, i).second) << number << " was written twice";
      }
    }
    EXPECT_EQ(winners.size(), size_t{kContestedNames});
    for (const auto& [number, writer] : winners) {
      EXPECT_EQ(reader.Read(ContestedName(number), 64 * 1024).bytes,
                Client::Bytes(ContestSeed(writer, number), 64 * 1024));
    }
    for (auto& writer : writers) writer->Tell("remove");
    for (auto& writer : writers) {
      ASSERT_TRUE(writer->ReadUntil("remove", milliseconds(60'000)).has_value());
    }
    for (int number = 0; number < kContestedNames; ++number) {
      EXPECT_EQ(reader.Look(ContestedName(number)).code(), Code::kNotFound);
    }
  }
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == aquifer::kWriterFlag) {
    return aquifer::RunWriter(argv[2], std::atoi(argv[3]));  // NOLINT: our own number.
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
