// How fast blobs come out of an S3 server and go into it, against the curl program on the same
// server, and beside the AWS SDK for Python.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "cli/bench_bucket.h"
#include "cli/bench_memory.h"
#include "cli/bench_row.h"
#include "cli/boto_peer.h"
#include "cli/curl_peer.h"
#include "cli/temporary_directory.h"
#include "net/sigv4.h"
#include "settings/size_text.h"
#include "store/object_store.h"

namespace aquifer {
namespace {

constexpr uint64_t kHeadBytes = 4096;
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

  Result<double> Ours() override {
    const Stopwatch watch;
    AQ_RETURN_IF_ERROR(MoveAll(write_, RoundObjects()));
    return GigabytesPerSecond(RoundObjects() * object_bytes_, watch.Seconds());
  }

  std::vector<std::string> PeerNames() const override {
    return boto_ == nullptr ? std::vector<std::string>() : std::vector<std::string>{"boto3"};
  }
  Result<double> Peer(size_t /*peer*/) override {
    return boto_->Measure(write_, object_bytes_, objects_);
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
    AQ_RETURN_IF_ERROR(MoveAll(/*write=*/true, objects_));
    Result<std::unique_ptr<BotoPeer>> boto = BotoPeer::New(bucket_->options());
    if (boto.ok()) boto_ = *std::move(boto);
    return Status();
  }

  // Each of the requests takes the next object when it is done.
  Status MoveAll(bool write, size_t count) {
    std::vector<BlobRequest> requests(std::min(kAtOnce, count));
    {
      const MutexLock lock(&mutex_);
      left_ = count;
      under_way_ = requests.size();
      failure_ = Status();
    }
    for (size_t i = 0; i < requests.size(); ++i) StartNext(write, i, &requests[i]);
    const MutexLock lock(&mutex_);
    while (under_way_ > 0) done_.Wait(&mutex_);
    return failure_;
  }

  // The next object's number; nothing when there is none, and the request is over.
  std::optional<size_t> TakeNext() {
    const MutexLock lock(&mutex_);
    if (left_ > 0 && failure_.ok()) return --left_ % objects_;
    if (--under_way_ == 0) done_.NotifyOne();
    return std::nullopt;
  }

  void StartNext(bool write, size_t slot, BlobRequest* request) {
    const std::optional<size_t> object = TakeNext();
    if (!object.has_value()) return;
    *request = {.kind = write ? BlobKind::kWrite : BlobKind::kRead,
                .name = NameOf(*object),
                .head = Slot(slot).first(kHeadBytes),
                .body = Slot(slot).subspan(kHeadBytes),
                .body_bytes = object_bytes_ - kHeadBytes,
                .on_done = [this, write, slot](BlobRequest& done) { OnMoved(write, slot, &done); }};
    store_->Submit(request);
  }

  void OnMoved(bool write, size_t slot, BlobRequest* request) {
    if (!request->status.ok()) {
      const MutexLock lock(&mutex_);
      failure_ = request->status;
    }
    StartNext(write, slot, request);
  }

  const bool write_;
  const uint64_t object_bytes_;
  const size_t objects_;
  const std::unique_ptr<TemporaryDirectory> directory_;
  const std::unique_ptr<BenchBucket> bucket_;
  const CurlPeer curl_;
  CurlPeer::Source source_;
  std::unique_ptr<BotoPeer> boto_;
  BenchMemory memory_;
  std::unique_ptr<BlobStore> store_;

  Mutex mutex_;
  Condition done_;
  size_t left_ AQ_GUARDED_BY(mutex_) = 0;
  size_t under_way_ AQ_GUARDED_BY(mutex_) = 0;
  Status failure_ AQ_GUARDED_BY(mutex_);
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
