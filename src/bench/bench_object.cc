// How fast blobs come out of an S3 server and go into it, against the curl program on the same
// server, and beside the AWS SDK for Python.
#include <fmt/format.h>

#include <fstream>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/text/size_text.h"
#include "bench/bench_row.h"
#include "bench/blob_round.h"
#include "bench/peers/bench_bucket.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/curl_peer.h"
#include "bench/peers/peer_program.h"
#include "cli/temporary_directory.h"
#include "store/s3/object_store.h"
#include "store/s3/sigv4.h"

namespace aquifer {
namespace {

constexpr uint64_t kWorkingBytes = uint64_t{128} << 20;  // Different objects.
constexpr uint64_t kRoundBytes = uint64_t{512} << 20;    // Long beside curl's start.
constexpr size_t kAtOnce = 16;

class ObjectContest final : public Contest {
 public:
  static Result<std::unique_ptr<Contest>> New(bool write, uint64_t object_bytes) {
    // In memory: what is measured is how bytes get there, not the server's disk.
    AQ_ASSIGN_OR_RETURN(std::unique_ptr<TemporaryDirectory> directory,
                        TemporaryDirectory::New("/dev/shm", "aquifer-bench-"));
    AQ_ASSIGN_OR_RETURN(std::unique_ptr<BenchBucket> bucket, BenchBucket::New(directory->path()));
    auto contest = std::make_unique<ObjectContest>(write, object_bytes, std::move(directory),
                                                   std::move(bucket));
    AQ_RETURN_IF_ERROR(contest->Prepare());
    return std::unique_ptr<Contest>(std::move(contest));
  }

  ObjectContest(bool write, uint64_t object_bytes, std::unique_ptr<TemporaryDirectory> directory,
                std::unique_ptr<BenchBucket> bucket)
      : write_(write),
        object_bytes_(object_bytes),
        objects_(kWorkingBytes / object_bytes),
        directory_(std::move(directory)),
        bucket_(std::move(bucket)),
        curl_(bucket_->options(), directory_->path()) {}

  Result<double> Limit() override {
    std::vector<std::string> keys;
    for (size_t i = 0; i < RoundObjects(); ++i) keys.push_back(NameOf(i % objects_));
    AQ_ASSIGN_OR_RETURN(const double seconds, write_ ? curl_.UploadSeconds(keys, source_, kAtOnce)
                                                     : curl_.DownloadSeconds(keys, kAtOnce));
    return GigabytesPerSecond(RoundObjects() * object_bytes_, seconds);
  }

  Result<double> Ours() override { return RunBlobRound(RoundOf(write_, RoundObjects())); }

  std::vector<std::string> PeerNames() const override {
    return boto_ == nullptr ? std::vector<std::string>() : std::vector<std::string>{"boto3"};
  }
  Result<double> Peer(size_t /*peer*/) override {
    return boto_->Ask(fmt::format("{} {} {}", write_ ? "write" : "read", object_bytes_, objects_));
  }

  std::string Note() const override {
    return fmt::format("versitygw on the loopback, plain HTTP, {} requests at once{}", kAtOnce,
                       write_ ? "; curl is given the sums of what it sends, ours makes them" : "");
  }

 private:
  size_t RoundObjects() const { return kRoundBytes / object_bytes_; }
  static std::string NameOf(size_t object) { return fmt::format("object/{}", object); }
  std::span<std::byte> Slot(size_t slot) const {
    return memory_.bytes().subspan(slot * object_bytes_, object_bytes_);
  }

  Status Prepare() {
    AQ_ASSIGN_OR_RETURN(store_, NewObjectStore(bucket_->options(), SystemClock(), SystemRandom()));
    AQ_ASSIGN_OR_RETURN(memory_, BenchMemory::New(kAtOnce * object_bytes_));
    FillFromSeed(memory_.bytes(), 1);
    source_ = {.file = directory_->path() + "/object", .sha256 = PayloadSha256(Slot(0))};
    std::ofstream(source_.file, std::ios::binary)
        .write(reinterpret_cast<const char*>(memory_.bytes().data()),
               static_cast<std::streamsize>(object_bytes_));
    AQ_RETURN_IF_ERROR(RunBlobRound(RoundOf(/*write=*/true, objects_)).status());
    const BucketOptions& bucket = bucket_->options();
    Result<std::unique_ptr<PeerProgram>> boto =
        StartBoto({bucket.endpoints.front(), bucket.bucket, bucket.credentials.given.access_key,
                   bucket.credentials.given.secret_key, std::to_string(bucket.max_connections)});
    if (boto.ok()) boto_ = *std::move(boto);
    return Status();
  }

  BlobRound RoundOf(bool write, size_t count) const {
    BlobRound round{.store = store_.get(), .kind = write ? BlobKind::kWrite : BlobKind::kRead};
    for (size_t i = 0; i < count; ++i) round.names.push_back(NameOf(i % objects_));
    for (size_t i = 0; i < kAtOnce; ++i) round.places.push_back(Slot(i));
    return round;
  }

  const bool write_;
  const uint64_t object_bytes_;
  const size_t objects_;
  const std::unique_ptr<TemporaryDirectory> directory_;
  const std::unique_ptr<BenchBucket> bucket_;
  const CurlPeer curl_;
  CurlPeer::Source source_;
  std::unique_ptr<PeerProgram> boto_;
  BenchMemory memory_;
  std::unique_ptr<BlobStore> store_;
};

Row ObjectRow(bool write, uint64_t object_bytes) {
  return {
      .name = fmt::format("object.{}/{}", write ? "write" : "read", SizeText(object_bytes)),
      .unit = "GB/s",
      .limit_is = fmt::format("curl, {} at once, {} the same objects {} the same server, "
                              "without its start",
                              kAtOnce, write ? "uploading" : "downloading", write ? "to" : "from"),
      .goal = write ? 0.7 : 0.9,
      .prepare = [=](const BenchEnvironment&) { return ObjectContest::New(write, object_bytes); },
      .rounds = 9,
      .quick_rounds = 3};
}

}  // namespace

void AddObjectRows(std::vector<Row>* rows) {
  if (BenchBucket::ServerProgram().empty()) return;
  for (const bool write : {false, true}) {
    for (const uint64_t mib : {2, 8}) rows->push_back(ObjectRow(write, mib << 20));
  }
}

}  // namespace aquifer
