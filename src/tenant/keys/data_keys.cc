#include "tenant/keys/data_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/text/hex.h"

namespace aquifer {
namespace {

constexpr uint32_t kMagic = 0x314b5141;  // "AQK1".
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 56;
constexpr size_t kMaxWrappedBytes = 4096;
// If a key is destroyed while it is being made or read, begin again, this many times at most.
constexpr int kAttempts = 8;

constexpr std::string_view kMarkPrefix = "gone";  // No tenant's key has this name.
constexpr size_t kMostPast = 8;                   // For each tenant.

using Header = std::array<std::byte, kHeaderBytes>;

struct KeyFile {
  TenantId tenant;
  DataKeyId generation{};
  MasterKeyId master{};
  std::vector<std::byte> wrapped;

  // All fields but the wrapped key itself; the wrapper authenticates them.
  Header HeaderBytes() const {
    Header header{};
    std::byte* to = PutU32(header.data(), kMagic);
    to = PutU16(to, kVersion);
    to = PutU16(to, 0);
    to = PutBytes(to, tenant.bytes.data(), tenant.bytes.size());
    to = PutBytes(to, generation.data(), generation.size());
    PutBytes(to, master.data(), master.size());
    return header;
  }

  std::vector<std::byte> Encode() const {
    const Header header = HeaderBytes();
    std::vector<std::byte> bytes(header.begin(), header.end());
    bytes.insert(bytes.end(), wrapped.begin(), wrapped.end());
    return bytes;
  }
};

std::string NameOf(const TenantId& tenant) { return HexOf(tenant.bytes); }

// Returns nothing if this is not the name of a tenant's key.
std::optional<TenantId> TenantOf(const std::string& name) {
  TenantId tenant;
  if (!FromHex(name, tenant.bytes)) return std::nullopt;
  return tenant;
}

Status Damaged(const TenantId& tenant) {
  return Status(
      Code::kCorrupt,
      fmt::format("the data key {} in the key store is damaged; put a copy of it back, or "
                  "delete its tenant",
                  NameOf(tenant)));
}

Result<KeyFile> DecodeKeyFile(std::span<const std::byte> bytes, const TenantId& tenant) {
  if (bytes.size() < 8 || GetU32(bytes.data()) != kMagic) return Damaged(tenant);
  if (GetU16(bytes.data() + 4) > kVersion) {
    return Status(Code::kInvalid, "a data key in the key store was written by a later release");
  }
  if (bytes.size() <= kHeaderBytes || bytes.size() > kHeaderBytes + kMaxWrappedBytes ||
      GetU16(bytes.data() + 4) != kVersion || GetU16(bytes.data() + 6) != 0) {
    return Damaged(tenant);
  }
  KeyFile file;
  const auto take = [&](size_t at, auto* to) { std::memcpy(to->data(), bytes.data() + at, 16); };
  take(8, &file.tenant.bytes);
  take(24, &file.generation);
  take(40, &file.master);
  if (file.tenant != tenant || file.generation == DataKeyId{}) return Damaged(tenant);
  file.wrapped.assign(bytes.begin() + kHeaderBytes, bytes.end());
  return file;
}

// The name of the mark that a destroyed key leaves in the store.
std::string MarkOf(const DataKeyId& id) { return std::string(kMarkPrefix) + HexOf(id); }

// Returns true if the key had to be wrapped anew.
Result<bool> RewrapOne(KeyStore* store, KeyWrapper* wrapper, const TenantId& tenant) {
  const std::string name = NameOf(tenant);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto bytes = store->Read(name);
    if (bytes.status().code() == Code::kNotFound) return false;
    if (!bytes.ok()) return bytes.status();
    AQ_ASSIGN_OR_RETURN(KeyFile file, DecodeKeyFile(*bytes, tenant));
    if (file.master == wrapper->current()) return false;
    AQ_ASSIGN_OR_RETURN(const SecretKey secret,
                        wrapper->Unwrap(file.master, file.wrapped, file.HeaderBytes()));
    file.master = wrapper->current();
    AQ_ASSIGN_OR_RETURN(file.wrapped, wrapper->Wrap(secret, file.HeaderBytes()));
    // Replace() never touches a key that was deleted or made anew meanwhile.
    AQ_ASSIGN_OR_RETURN(const bool replaced, store->Replace(name, *bytes, file.Encode()));
    if (replaced) return true;
  }
  return Status(Code::kBusy, "a data key keeps changing");
}

}  // namespace

Result<SharedDataKey> DataKeys::Read(const TenantId& tenant) {
  AQ_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, store_->Read(NameOf(tenant)));
  AQ_ASSIGN_OR_RETURN(const KeyFile file, DecodeKeyFile(bytes, tenant));
  auto key = std::make_shared<DataKey>();
  key->id = file.generation;
  AQ_ASSIGN_OR_RETURN(key->secret, wrapper_->Unwrap(file.master, file.wrapped, file.HeaderBytes()));
  return SharedDataKey(std::move(key));
}

Result<bool> DataKeys::Make(const TenantId& tenant) {
  KeyFile file;
  file.tenant = tenant;
  random_->Fill(file.generation);
  file.master = wrapper_->current();
  SecretKey secret;
  random_->Fill(secret.writable());
  AQ_ASSIGN_OR_RETURN(file.wrapped, wrapper_->Wrap(secret, file.HeaderBytes()));
  return store_->Create(NameOf(tenant), file.Encode());
}

SharedDataKey DataKeys::Remember(const TenantId& tenant, SharedDataKey key, uint64_t destroyed) {
  const MutexLock lock(&mutex_);
  if (destroyed != destroyed_) return nullptr;  // This key may be the one that was destroyed.
  return keys_.insert_or_assign(tenant, std::move(key)).first->second;
}

Result<SharedDataKey> DataKeys::Get(const TenantId& tenant) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uint64_t destroyed = 0;
    {
      const MutexLock lock(&mutex_);
      if (const auto found = keys_.find(tenant); found != keys_.end()) return found->second;
      if (held_.contains(tenant)) {
        return Status(Code::kBusy, "blocks sealed with its last data key are still being dropped");
      }
      destroyed = destroyed_;
    }
    AQ_ASSIGN_OR_RETURN(SharedDataKey key, Read(tenant));
    if (SharedDataKey known = Remember(tenant, std::move(key), destroyed)) return known;
  }
  return Status(Code::kBusy, "data keys keep being destroyed");
}

Result<SharedDataKey> DataKeys::GetOrMake(const TenantId& tenant) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Result<SharedDataKey> found = Get(tenant);
    if (found.ok() || found.status().code() != Code::kNotFound) return found;
    // Another node may have been first: the key in the store counts.
    if (const auto made = Make(tenant); !made.ok()) return made.status();
  }
  return Status(Code::kBusy, "this data key keeps being destroyed");
}

SharedDataKey DataKeys::Known(const TenantId& tenant) const {
  const MutexLock lock(&mutex_);
  const auto found = keys_.find(tenant);
  return found == keys_.end() ? nullptr : found->second;
}

size_t DataKeys::known() const {
  const MutexLock lock(&mutex_);
  return keys_.size();
}

DataKeys::Refreshed DataKeys::Refresh() {
  std::vector<std::pair<TenantId, SharedDataKey>> known;
  {
    const MutexLock lock(&mutex_);
    known.assign(keys_.begin(), keys_.end());
  }
  Refreshed refreshed;
  for (const auto& [tenant, key] : known) {
    const Result<SharedDataKey> found = Read(tenant);
    const bool missing = !found.ok() && found.status().code() == Code::kNotFound;
    if (!found.ok() && !missing) {
      if (refreshed.status.ok()) refreshed.status = found.status();
      continue;
    }
    if (!missing && (*found)->id == key->id) continue;
    const MutexLock lock(&mutex_);
    const auto at = keys_.find(tenant);
    if (at == keys_.end() || at->second != key) continue;  // Another thread saw it first.
    AddPast(tenant, key->id);
    keys_.erase(at);
    held_.insert(tenant);
    ++destroyed_;
    refreshed.forgotten.push_back(tenant);
  }
  return refreshed;
}

Status DataKeys::Destroy(const TenantId& tenant) {
  // The ids of the key in the store and of the key in memory: the store may not be readable just
  // now, or another node has made a new key since.
  std::set<DataKeyId> ids;
  if (const std::optional<DataKeyId> id = IdInStore(tenant)) ids.insert(*id);
  if (const SharedDataKey known = Known(tenant)) ids.insert(known->id);
  // A key leaves memory only after it has left the store. Otherwise it would be read again and seem
  // to be back.
  AQ_RETURN_IF_ERROR(store_->Delete(NameOf(tenant)));
  // Only now, because blocks of marked keys are removed from stores.
  std::set<DataKeyId> unmarked = ids;
  std::erase_if(unmarked, [this](const DataKeyId& id) { return Mark(id); });
  const MutexLock lock(&mutex_);
  for (const DataKeyId& id : ids) AddPast(tenant, id);
  marks_.merge(ids);
  unmarked_.merge(unmarked);
  keys_.erase(tenant);
  held_.insert(tenant);
  ++destroyed_;
  return Status();
}

void DataKeys::Release(const TenantId& tenant) {
  const MutexLock lock(&mutex_);
  if (const auto found = held_.find(tenant); found != held_.end()) held_.erase(found);
}

bool DataKeys::held(const TenantId& tenant) const {
  const MutexLock lock(&mutex_);
  return held_.contains(tenant);
}

bool DataKeys::Mark(const DataKeyId& id) {
  return store_->Create(MarkOf(id), std::array{std::byte{1}}).ok();
}

std::optional<DataKeyId> DataKeys::IdInStore(const TenantId& tenant) {
  const auto bytes = store_->Read(NameOf(tenant));
  if (!bytes.ok()) return std::nullopt;
  const Result<KeyFile> file = DecodeKeyFile(*bytes, tenant);
  if (!file.ok()) return std::nullopt;
  return file->generation;
}

void DataKeys::AddPast(const TenantId& tenant, const DataKeyId& id) {
  std::vector<DataKeyId>& past = past_[tenant];
  if (std::ranges::find(past, id) != past.end()) return;
  if (past.size() == kMostPast) past.erase(past.begin());
  past.push_back(id);
}

std::vector<DataKeyId> DataKeys::Past(const TenantId& tenant) const {
  const MutexLock lock(&mutex_);
  const auto found = past_.find(tenant);
  return found == past_.end() ? std::vector<DataKeyId>() : found->second;
}

bool DataKeys::IsDestroyed(const DataKeyId& id) const {
  const MutexLock lock(&mutex_);
  return marks_.contains(id);
}

std::vector<DataKeyId> DataKeys::Destroyed() const {
  const MutexLock lock(&mutex_);
  return {marks_.begin(), marks_.end()};
}

Status DataKeys::ReadMarks() {
  std::set<DataKeyId> unmarked;
  {
    const MutexLock lock(&mutex_);
    unmarked = unmarked_;
  }
  std::erase_if(unmarked, [this](const DataKeyId& id) { return !Mark(id); });
  AQ_ASSIGN_OR_RETURN(const std::vector<std::string> names, store_->List());
  std::set<DataKeyId> marks;
  for (const std::string& name : names) {
    if (!name.starts_with(kMarkPrefix)) continue;
    DataKeyId id;
    if (FromHex(std::string_view(name).substr(kMarkPrefix.size()), id)) marks.insert(id);
  }
  const MutexLock lock(&mutex_);
  for (const DataKeyId& id : unmarked) unmarked_.erase(id);
  marks_.merge(marks);
  return Status();
}

Result<size_t> DataKeys::Rewrap() {
  AQ_ASSIGN_OR_RETURN(const std::vector<std::string> names, store_->List());
  size_t count = 0;
  Status trouble;
  for (const std::string& name : names) {
    const std::optional<TenantId> tenant = TenantOf(name);
    if (!tenant.has_value()) continue;
    const Result<bool> rewrapped = RewrapOne(store_, wrapper_, *tenant);
    if (!rewrapped.ok() && trouble.ok()) trouble = rewrapped.status();
    if (rewrapped.ok() && *rewrapped) ++count;
  }
  if (!trouble.ok()) return trouble;
  return count;
}

Result<size_t> CountMissingKeys(KeyStore* from, KeyStore* to) {
  AQ_ASSIGN_OR_RETURN(const std::vector<std::string> names, from->List());
  size_t missing = 0;
  for (const std::string& name : names) {
    const std::optional<TenantId> tenant = TenantOf(name);
    if (!tenant) continue;
    const auto bytes = from->Read(name);
    if (bytes.status().code() == Code::kNotFound) continue;  // Deleted meanwhile.
    if (!bytes.ok()) return bytes.status();
    AQ_ASSIGN_OR_RETURN(const KeyFile file, DecodeKeyFile(*bytes, *tenant));
    const auto others = to == nullptr ? Status(Code::kNotFound) : to->Read(name);
    if (!others.ok() && others.status().code() != Code::kNotFound) return others.status();
    const Result<KeyFile> other =
        others.ok() ? DecodeKeyFile(*others, *tenant) : Result<KeyFile>(others.status());
    if (!other.ok() || other->generation != file.generation) ++missing;
  }
  return missing;
}

}  // namespace aquifer
