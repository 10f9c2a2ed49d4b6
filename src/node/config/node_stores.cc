#include "node/config/node_stores.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/crypto/secret_key.h"
#include "base/text/secret_file.h"
#include "store/posix/posix_store.h"
#include "store/redis/redis_store.h"
#include "store/s3/object_store.h"

namespace aquifer {
namespace {

Status InTier(const TierConfig& tier, const Status& status) {
  return status.ok()
             ? status
             : Status(status.code(), fmt::format("tier {}: {}", tier.name, status.message()));
}

Result<std::unique_ptr<BlobStore>> NewDirectory(const TierConfig& tier, KnownDirectories* known) {
  PosixStoreOptions options;
  options.directory = tier.directory;
  options.known = known->Has(tier.directory);
  options.on_there = [known, directory = tier.directory] { known->Add(directory); };
  options.capacity_bytes = tier.size_bytes;
  options.sync = tier.sync;
  return NewPosixStore(std::move(options));
}

Result<std::unique_ptr<BlobStore>> NewRedis(const TierConfig& tier) {
  RedisStoreOptions options;
  options.servers = tier.endpoints;
  options.user = tier.user;
  if (!tier.password_file.empty()) {
    AQ_ASSIGN_OR_RETURN(options.password, ReadSecretLine(tier.password_file, ::geteuid()));
  }
  options.tls = tier.tls;
  options.ca_file = tier.ca_file;
  if (!tier.prefix.empty()) options.prefix = tier.prefix + ":";
  return NewRedisStore(std::move(options));
}

// A key that is set for something else does not come before the web identity that was asked for.
bool IsOfWebIdentity(std::string_view variable) {
  return variable == "AWS_WEB_IDENTITY_TOKEN_FILE" || variable == "AWS_ROLE_ARN" ||
         variable == "AWS_ENDPOINT_URL_STS";
}

Result<S3CredentialSettings> CredentialsOf(const TierConfig& tier,
                                           const SecretEnvironment& environment) {
  S3CredentialSettings settings;
  if (tier.credentials.starts_with('/')) {
    // What is wrong with the file is said at the start; it is read again when it is used.
    AQ_ASSIGN_OR_RETURN(std::string text, ReadSecretFile(tier.credentials, ::geteuid()));
    WipeSecret(std::as_writable_bytes(std::span(text)));
    settings.file = tier.credentials;
    return settings;
  }
  const bool by_token = tier.credentials == kCredentialsFromWebIdentity;
  settings = S3CredentialsFromEnvironment(
      [&environment, by_token](const char* name) {
        return by_token && !IsOfWebIdentity(name) ? nullptr : environment.Get(name);
      },
      tier.region);
  if (by_token && settings.token_file.empty()) {
    return Status(Code::kInvalid,
                  "credentials are to come from a web identity, and AWS_WEB_IDENTITY_TOKEN_FILE is "
                  "not set; set it and AWS_ROLE_ARN in the node's environment, or change "
                  "credentials");
  }
  return settings;
}

DurableWrites WritesOf(TierWrites writes) {
  switch (writes) {
    case TierWrites::kDurable:
      return DurableWrites::kDurable;
    case TierWrites::kAll:
      return DurableWrites::kAll;
    case TierWrites::kNothing:
      return DurableWrites::kNothing;
  }
  return DurableWrites::kDurable;
}

LosslessUse LosslessOf(LosslessChoice choice) {
  switch (choice) {
    case LosslessChoice::kAuto:
      return LosslessUse::kWherePays;
    case LosslessChoice::kOn:
      return LosslessUse::kAlways;
    case LosslessChoice::kOff:
      return LosslessUse::kNever;
  }
  return LosslessUse::kWherePays;
}

DurableTierOptions TierOptionsOf(const TierConfig& tier) {
  DurableTierOptions options;
  options.name = tier.name;
  options.lossless = LosslessOf(tier.lossless);
  // Redis forgets what has expired by itself.
  if (tier.kind == StoreKind::kRedis) options.sweep_interval_nanos = 0;
  return options;
}

}  // namespace

std::vector<std::string> EndpointsOf(const TierConfig& tier) {
  if (!tier.endpoints.empty()) return tier.endpoints;
  return {fmt::format("https://s3.{}.amazonaws.com", tier.region)};
}

Result<BucketOptions> BucketOf(const TierConfig& tier, const SecretEnvironment& environment) {
  BucketOptions options;
  options.endpoints = EndpointsOf(tier);
  options.allow_plain_http = tier.allow_plain_http;
  options.bucket = tier.bucket;
  if (!tier.prefix.empty()) options.prefix = tier.prefix + "/";
  options.region = tier.region;
  options.virtual_host = tier.virtual_host;
  options.ca_file = tier.ca_file;
  AQ_ASSIGN_OR_RETURN(options.credentials, CredentialsOf(tier, environment));
  AQ_RETURN_IF_ERROR(CheckBucketOptions(options));
  return options;
}

Result<std::unique_ptr<BlobStore>> NewStore(const TierConfig& tier,
                                            const SecretEnvironment& environment,
                                            KnownDirectories* known) {
  Result<std::unique_ptr<BlobStore>> store = Status(Code::kInvalid);
  switch (tier.kind) {
    case StoreKind::kPosix:
      store = NewDirectory(tier, known);
      break;
    case StoreKind::kRedis:
      store = NewRedis(tier);
      break;
    case StoreKind::kObject: {
      const Result<BucketOptions> bucket = BucketOf(tier, environment);
      if (!bucket.ok()) return InTier(tier, bucket.status());
      store = NewObjectStore(*bucket, SystemClock(), SystemRandom());
      break;
    }
  }
  if (!store.ok()) return InTier(tier, store.status());
  return store;
}

NodeStores::NodeStores(KeySource* keys, const std::string& state)
    : packer_({.keys = keys}, SystemClock(), SystemRandom()), known_(state) {}

NodeStores::~NodeStores() = default;

Result<std::unique_ptr<NodeStores>> NodeStores::New(const std::vector<TierConfig>& tiers,
                                                    const SecretEnvironment& environment,
                                                    KeySource* keys, const std::string& state) {
  std::unique_ptr<NodeStores> stores(new NodeStores(keys, state));
  for (const TierConfig& tier : tiers) {
    AQ_ASSIGN_OR_RETURN(auto store, NewStore(tier, environment, &stores->known_));
    stores->tiers_.push_back({.config = tier, .store = std::move(store)});
  }
  return stores;
}

std::vector<DurableTierSource> NodeStores::Sources() {
  std::vector<DurableTierSource> sources;
  for (One& one : tiers_) {
    DurableTierSource source;
    source.name = one.config.name;
    source.make = [this, &one](const DurableTierParts& parts) {
      return NewDurableTier(TierOptionsOf(one.config), one.store.get(), &packer_, parts.listener,
                            parts.workers, parts.owner, parts.clock, parts.random);
    };
    source.close = [&one] { one.store.reset(); };
    source.writes = WritesOf(one.config.writes);
    // Redis is a cache unless its owner says that it keeps what it is given.
    source.lasting =
        one.config.kind != StoreKind::kRedis || one.config.writes == TierWrites::kDurable;
    source.write_bytes_per_second = one.config.write_bytes_per_second;
    sources.push_back(std::move(source));
  }
  return sources;
}

BlobStore* NodeStores::Find(std::string_view name) const {
  const auto found = std::find_if(tiers_.begin(), tiers_.end(),
                                  [name](const One& one) { return one.config.name == name; });
  return found == tiers_.end() ? nullptr : found->store.get();
}

std::vector<std::string> NodeStores::names() const {
  std::vector<std::string> names;
  for (const One& one : tiers_) names.push_back(one.config.name);
  return names;
}

void NodeStores::AddCounters(std::vector<DurableStats>* tiers) const {
  for (DurableStats& tier : *tiers) {
    const BlobStore* const store = Find(tier.name);
    if (store == nullptr) continue;
    for (const auto& [name, value] : store->Counters()) {
      tier.counters.emplace_back("store_" + name, value);
    }
  }
}

}  // namespace aquifer
