#include "sim/world/node.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace aquifer {

// A MemoryDisk that the node hears of when the cache closes it.
class SimulatedNode::Mount final : public Disk {
 public:
  Mount(SimulatedNode* node, size_t drive, std::unique_ptr<MemoryDisk> disk)
      : node_(node), drive_(drive), disk_(std::move(disk)) {
    node_->mounted_[drive_] = this;
  }
  ~Mount() override {
    if (node_->mounted_[drive_] == this) node_->mounted_[drive_] = nullptr;
  }

  void Submit(IoGroup* group) override { disk_->Submit(group); }
  void Remember(std::span<std::byte> memory) override { disk_->Remember(memory); }
  void Forget(std::span<std::byte> memory) override { disk_->Forget(memory); }
  Result<std::vector<DiskFile>> List() override { return disk_->List(); }
  std::string Describe() const override { return disk_->Describe(); }
  DiskStats stats() const override { return disk_->stats(); }

  MemoryDisk* disk() { return disk_.get(); }

 private:
  SimulatedNode* const node_;
  const size_t drive_;
  const std::unique_ptr<MemoryDisk> disk_;
};

// An extent that is listed while it lives.
class SimulatedNode::TrackedExtent final : public Extent {
 public:
  using List = std::map<const std::byte*, std::pair<uint64_t, uint64_t>>;  // To name and bytes.

  TrackedExtent(std::unique_ptr<Extent> extent, uint64_t name, std::shared_ptr<List> list)
      : extent_(std::move(extent)), list_(std::move(list)) {
    list_->emplace(bytes().data(), std::pair(name, bytes().size()));
  }
  ~TrackedExtent() override { list_->erase(bytes().data()); }

  std::span<std::byte> bytes() override { return extent_->bytes(); }
  void KeepContents() override {}
  int descriptor() const override { return extent_->descriptor(); }
  bool huge_pages() const override { return extent_->huge_pages(); }

 private:
  const std::unique_ptr<Extent> extent_;
  const std::shared_ptr<List> list_;  // Shared: an extent may outlive its source.
};

class SimulatedNode::TrackedExtents final : public ExtentSource {
 public:
  TrackedExtents(ExtentSource* source, uint32_t node)
      : source_(source), names_(uint64_t{node} << 32) {}

  Result<std::unique_ptr<Extent>> New(uint64_t bytes) override {
    AQ_ASSIGN_OR_RETURN(std::unique_ptr<Extent> extent, source_->New(bytes));
    return std::unique_ptr<Extent>(
        std::make_unique<TrackedExtent>(std::move(extent), ++names_, list_));
  }
  uint64_t AvailableBytes() override { return source_->AvailableBytes(); }

  uint64_t NameOf(const std::byte* address) const {
    auto found = list_->upper_bound(address);
    if (found == list_->begin()) return 0;
    --found;
    return address < found->first + found->second.second ? found->second.first : 0;
  }

 private:
  ExtentSource* const source_;
  uint64_t names_;  // Of no other node either.
  const std::shared_ptr<TrackedExtent::List> list_ = std::make_shared<TrackedExtent::List>();
};

SimulatedNode::SimulatedNode(const SimulatedNodeOptions& options, Scheduler* scheduler,
                             SharedStores* stores)
    : options_(options),
      scheduler_(scheduler),
      stores_(stores),
      clock_(scheduler->clock(), options.clock_ahead_seconds),
      random_(options.seed),
      disk_random_(options.seed + 1),
      extents_(options.available_bytes),
      tracked_extents_(std::make_unique<TrackedExtents>(&extents_, options.number)),
      mounted_(options.core.cache.nvme_directories.size()) {
  ReplaceDrives();
}

void SimulatedNode::ReplaceDrives() {
  AQ_CHECK(!alive());
  media_.clear();
  for (size_t i = 0; i < drives(); ++i) {
    media_.push_back(std::make_shared<MemoryMedia>());
    media_.back()->set_reorder_until_sync(options_.reorder_until_sync);
  }
}

SimulatedNode::~SimulatedNode() {
  if (alive()) Die(Death::kProcess);
}

void SimulatedNode::Start(std::function<void()> on_ready) {
  AQ_CHECK(!alive());
  ++life_;
  party_ = scheduler_->NewParty();
  ready_ = false;
  owner_ =
      std::make_unique<OwnerLane>(scheduler_, party_, random_.Next(), options_.owner_task_nanos);
  workers_ =
      std::make_unique<WorkerLane>(scheduler_, party_, random_.Next(), options_.worker_task_nanos);
  drive_lanes_.clear();
  for (size_t i = 0; i < drives(); ++i) {
    drive_lanes_.push_back(std::make_unique<DriveLane>(scheduler_, party_, random_.Next()));
  }
  CacheEnvironment environment;
  environment.clock = &clock_;
  environment.random = &random_;
  environment.owner = owner_.get();
  environment.workers = workers_.get();
  environment.extents = tracked_extents_.get();
  environment.open_disk = [this](const std::string& directory) { return OpenDrive(directory); };
  if (stores_ != nullptr) {
    links_ = std::make_unique<StoreLinks>(stores_, party_, &clock_, &random_, random_.Next());
    environment.durable_tiers = links_->Sources();
    environment.packer = links_->packer()->seals() ? links_->packer() : nullptr;
  }
  Result<std::unique_ptr<Core>> core = Core::New(options_.core, environment);
  AQ_CHECK(core.ok());
  core_ = *std::move(core);
  Post([this, on_ready = std::move(on_ready)] {
    core_->Start([this, on_ready](const Status& status) {
      AQ_CHECK(status.ok());
      ready_ = true;
      on_ready();
    });
  });
}

Result<std::unique_ptr<Disk>> SimulatedNode::OpenDrive(const std::string& directory) {
  if (fail_opening_) return Status(Code::kUnavailable, "injected");
  const auto& names = options().nvme_directories;
  const auto drive =
      static_cast<size_t>(std::find(names.begin(), names.end(), directory) - names.begin());
  MemoryDiskOptions disk = options_.disk;
  disk.name = directory;
  disk.random = &disk_random_;
  return std::unique_ptr<Disk>(std::make_unique<Mount>(
      this, drive,
      std::make_unique<MemoryDisk>(media_[drive], disk, drive_lanes_[drive].get(), &clock_)));
}

uint64_t SimulatedNode::Die(Death death) {
  uint64_t pending = 0;
  std::vector<IoGroup*> groups;
  for (size_t i = 0; i < drives(); ++i) {
    if (MemoryDisk* const disk = this->disk(i); disk != nullptr) {
      pending += disk->requests_pending();
      const std::vector<IoGroup*> waiting =
          death == Death::kProcess ? disk->Crash(&disk_random_) : disk->PowerLoss(&disk_random_);
      groups.insert(groups.end(), waiting.begin(), waiting.end());
    } else if (death == Death::kPower) {
      media_[i]->LoseUnsynced(&disk_random_);
    }
  }
  ready_ = false;
  if (links_ != nullptr) links_->Abandon();
  core_.reset();
  if (links_ != nullptr) links_->Close();
  scheduler_->Forget(party_);
  links_.reset();
  // Nobody hears of these any more; they are only freed.
  for (IoGroup* const group : groups) group->on_done(*group);
  return pending;
}

MemoryDisk* SimulatedNode::disk(size_t drive) {
  return mounted_[drive] == nullptr ? nullptr : mounted_[drive]->disk();
}

void SimulatedNode::SetSlow(size_t drive, int64_t nanos) { drive_lanes_[drive]->SetSlow(nanos); }

uint64_t SimulatedNode::ExtentOf(const std::byte* address) const {
  return tracked_extents_->NameOf(address);
}

bool SimulatedNode::DrivesUse(IoKind kind, std::span<const std::byte> memory) const {
  return std::any_of(mounted_.begin(), mounted_.end(), [&](Mount* mount) {
    return mount != nullptr && mount->disk()->Uses(kind, memory);
  });
}

}  // namespace aquifer
