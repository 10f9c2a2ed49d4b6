#include "node/config/node_config.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "base/text/mistakes.h"
#include "base/text/setting_readers.h"
#include "base/text/size_text.h"
#include "base/text/toml_value.h"
#include "net/local/default_socket.h"
#include "net/protocol/local_protocol.h"
#include "tenant/token.h"

namespace aquifer {
namespace {

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kOff = "off";
constexpr std::string_view kTier = "tier";
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kLeastDramBytes = 64 * kMiB;    // One extent.
constexpr uint64_t kLeastDriveBytes = 257 * kMiB;  // Four segments of 64 MiB, and a little.
constexpr uint64_t kSegmentUnit = 4096;

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

// ---- Values that the file and the command line have in common ----

Result<HttpAddress> ParseHttpAddress(std::string_view text) {
  const Status wrong = Invalid(fmt::format(
      "'{}' is not an address; write it like 127.0.0.1:9470, [::1]:9470, or off", text));
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong;
  HttpAddress address;
  address.host = text.substr(0, colon);
  const bool brackets = address.host.starts_with('[') && address.host.ends_with(']');
  if (brackets) address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host == "localhost") address.host = "127.0.0.1";
  std::array<std::byte, sizeof(in6_addr)> binary{};
  if (inet_pton(brackets ? AF_INET6 : AF_INET, address.host.c_str(), binary.data()) != 1) {
    return wrong;
  }
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size()) return wrong;
  return address;
}

Status SetHttp(std::string_view text, NodeConfig* config) {
  if (text == kOff) {
    config->http.reset();
    return Status();
  }
  AQ_ASSIGN_OR_RETURN(config->http, ParseHttpAddress(text));
  config->http_asked = true;
  return Status();
}

Result<SizeChoice> ParseDram(std::string_view text) {
  if (text == kAuto) return SizeChoice{};
  if (text.ends_with('%')) {
    const std::string_view number = text.substr(0, text.size() - 1);
    uint64_t percent = 0;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), percent);
    if (error != std::errc() || end != number.data() + number.size() || percent < 1 ||
        percent > 100) {
      return Invalid(fmt::format("'{}' is not from 1% to 100%", text));
    }
    return SizeChoice{.kind = SizeChoice::Kind::kPercent, .value = percent};
  }
  const Result<uint64_t> bytes = ParseSize(text);
  if (!bytes.ok()) {
    return Invalid(fmt::format("'{}' is not a size; write it like 16GiB, 40% or auto", text));
  }
  if (*bytes < kLeastDramBytes) {
    return Invalid(fmt::format("{} is too little; write at least {}", SizeText(*bytes),
                               SizeText(kLeastDramBytes)));
  }
  return SizeChoice{.kind = SizeChoice::Kind::kBytes, .value = *bytes};
}

Status SetSocket(const std::string& path, NodeConfig* config) {
  if (path.size() > kMaxSocketPathBytes) {
    return Invalid(fmt::format("the path of a Unix socket has at most {} bytes, this one {}",
                               kMaxSocketPathBytes, path.size()));
  }
  config->socket = path;
  return Status();
}

// Messages begin with the key: the two that it compares stand in different lines.
Status CheckDrives(const NodeConfig& config) {
  if (!config.nvme_directories.has_value()) return Status();
  std::vector<std::string> sorted = *config.nvme_directories;
  if (sorted.size() > kMaxStatsDrives) {
    return Invalid(
        fmt::format("nvme.directories: {} directories are too many; at most {} are possible",
                    sorted.size(), kMaxStatsDrives));
  }
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    return Invalid(fmt::format("nvme.directories: {} is there twice; name each once", *twice));
  }
  if (config.nvme.kind == SizeChoice::Kind::kBytes &&
      config.nvme.value < sorted.size() * kLeastDriveBytes) {
    return Invalid(
        fmt::format("nvme.size: {} for {} directories is too little; give at least {} for each",
                    SizeText(config.nvme.value), sorted.size(), SizeText(kLeastDriveBytes)));
  }
  return Status();
}

// ---- The file ----

Status At(const TomlValue& value, const Status& status) {
  return status.ok() ? status : value.Wrong(status.message());
}

Status ReadSocket(const TomlValue& value, NodeConfig* config) {
  std::string path;
  AQ_RETURN_IF_ERROR(ReadPathOr(kAuto, false, value, &path));
  return At(value, SetSocket(path, config));
}

Status ReadHttp(const TomlValue& value, NodeConfig* config) {
  AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
  return At(value, SetHttp(text, config));
}

Status ReadDramSize(const TomlValue& value, NodeConfig* config) {
  std::string text;
  if (value.is_text()) {
    AQ_ASSIGN_OR_RETURN(text, value.Text());
  } else {
    AQ_ASSIGN_OR_RETURN(const uint64_t bytes, value.Bytes());
    text = fmt::format("{}", bytes);
  }
  const Result<SizeChoice> size = ParseDram(text);
  if (!size.ok()) return value.Wrong(size.status().message());
  config->dram = *size;
  return Status();
}

Status ReadDirectories(const TomlValue& value, NodeConfig* config) {
  config->nvme_directories.reset();
  if (value.is_text()) {
    AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
    if (text == kAuto) return Status();
    return value.Wrong("this is neither \"auto\" nor a list, as in [\"/mnt/nvme0\"]");
  }
  AQ_ASSIGN_OR_RETURN(const auto elements, value.Elements());
  std::vector<std::string> directories;
  for (const TomlValue& element : elements) {
    AQ_ASSIGN_OR_RETURN(std::string path, AbsolutePathFrom(element));
    directories.push_back(std::move(path));
  }
  config->nvme_directories = std::move(directories);
  return Status();
}

// None: "auto".
Result<std::optional<uint64_t>> BytesOrAuto(const TomlValue& value) {
  if (value.is_text()) {
    AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
    if (text == kAuto) return std::optional<uint64_t>();
  }
  AQ_ASSIGN_OR_RETURN(const uint64_t bytes, value.Bytes());
  return std::optional(bytes);
}

Status ReadNvmeSize(const TomlValue& value, NodeConfig* config) {
  AQ_ASSIGN_OR_RETURN(const std::optional<uint64_t> bytes, BytesOrAuto(value));
  config->nvme = SizeChoice{};
  if (!bytes) return Status();
  if (*bytes < kLeastDriveBytes) {
    return value.Wrong(fmt::format("{} is too little; write at least {}, or no directories",
                                   SizeText(*bytes), SizeText(kLeastDriveBytes)));
  }
  config->nvme = {.kind = SizeChoice::Kind::kBytes, .value = *bytes};
  return Status();
}

Status ReadSegment(const TomlValue& value, NodeConfig* config) {
  AQ_ASSIGN_OR_RETURN(const std::optional<uint64_t> bytes, BytesOrAuto(value));
  if (bytes && (*bytes < kMiB || *bytes % kSegmentUnit != 0)) {
    return value.Wrong(
        fmt::format("{} is not a multiple of 4KiB of at least 1MiB; write \"auto\", or a size like "
                    "\"256MiB\"",
                    SizeText(*bytes)));
  }
  config->nvme_segment_bytes = bytes.value_or(0);
  return Status();
}

Status ReadWrittenPart(const TomlValue& value, NodeConfig* config) {
  AQ_ASSIGN_OR_RETURN(config->nvme_written_part, value.Number(0.01, 1));
  return Status();
}

Status ReadWorkers(const TomlValue& value, NodeConfig* config) {
  AQ_ASSIGN_OR_RETURN(const int64_t threads, value.Integer(1, kMaxWorkerThreads));
  config->worker_threads = static_cast<uint32_t>(threads);
  return Status();
}

Status ReadAdminToken(const TomlValue& value, NodeConfig* config) {
  AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
  config->admin_token_sha256.reset();
  if (text == kOff) return Status();
  const Result<Sha256Digest> digest = ParseTokenDigest(text);
  if (!digest.ok()) return value.Wrong(digest.status().message());
  config->admin_token_sha256 = *digest;
  return Status();
}

// A name is compared with the tiers' when all of them are known.
Status ReadKeyStore(const TomlValue& value, NodeConfig* config) {
  AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
  config->key_store = text.starts_with('/') ? NormalPath(text) : text == kAuto ? "" : text;
  return Status();
}

Status ReadTierList(const TomlValue& value, NodeConfig* config) {
  AQ_ASSIGN_OR_RETURN(config->tiers, ReadTiers(value));
  return Status();
}

// Redis forgets what it has no room for.
Status CheckKeyStore(const TomlValue& value, const NodeConfig& config) {
  if (config.key_store.empty() || config.key_store.starts_with('/')) return Status();
  for (const TierConfig& tier : config.tiers) {
    if (tier.name != config.key_store) continue;
    if (tier.kind != StoreKind::kRedis) return Status();
    return value.Wrong(
        "keys do not belong in Redis, which may drop them; name another tier, or a directory");
  }
  return value.Wrong(
      fmt::format("there is no [[tier]] of the name '{}'; write one, an absolute path, or \"auto\"",
                  config.key_store));
}

// What a key sets, for comparing two configurations and for taking it over at a reload.
struct Set {
  bool (*same)(const NodeConfig&, const NodeConfig&);
  void (*copy)(const NodeConfig& from, NodeConfig* to);
};
template <auto kMember>
constexpr Set kSet = {
    .same = [](const NodeConfig& a, const NodeConfig& b) { return a.*kMember == b.*kMember; },
    .copy = [](const NodeConfig& from, NodeConfig* to) { to->*kMember = from.*kMember; }};

using C = NodeConfig;
constexpr std::string_view kEngines[] = {kAuto, "io_uring", "threads"};
constexpr std::string_view kPolicies[] = {"learned", "lru"};
constexpr std::string_view kEncryptions[] = {kAuto, "on", kOff};

// Every key there is.
struct Setting {
  std::string_view section;  // Empty: the top of the file.
  std::string_view name;
  bool reloadable;
  Status (*read)(const TomlValue&, NodeConfig*);
  Set set;

  std::string Name() const {
    return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
  }
};
// clang-format off
constexpr Setting kKeys[] = {
    {"", "socket", false, &ReadSocket, kSet<&C::socket>},
    {"", "http", false, &ReadHttp, kSet<&C::http>},
    {"", "worker_threads", false, &ReadWorkers, kSet<&C::worker_threads>},
    {"", "policy", false, &ReadChoice<&C::policy, kPolicies>, kSet<&C::policy>},
    {"", "overdue", false, &ReadSeconds<&C::overdue_seconds, 1>, kSet<&C::overdue_seconds>},
    {"", "drain_budget", true, &ReadSeconds<&C::drain_seconds, 0>, kSet<&C::drain_seconds>},
    {"", "log_level", true, &ReadChoice<&C::log_level, kLogLevels>, kSet<&C::log_level>},
    {"", "log_format", true, &ReadChoice<&C::log_format, kLogFormats>, kSet<&C::log_format>},
    {"", "record", true, &ReadPathOr<&C::record_file, kOff>, kSet<&C::record_file>},
    {"", "tenants", true, &ReadPathOr<&C::tenants_file, kOff>, kSet<&C::tenants_file>},
    {"", "admin_token_sha256", true, &ReadAdminToken, kSet<&C::admin_token_sha256>},
    {"", "encryption", false, &ReadChoice<&C::encryption, kEncryptions>, kSet<&C::encryption>},
    {"", "master_key_file", true, &ReadPathOr<&C::master_key_file, kOff, true>, kSet<&C::master_key_file>},
    {"", "key_store", false, &ReadKeyStore, kSet<&C::key_store>},
    {"dram", "size", false, &ReadDramSize, kSet<&C::dram>},
    {"dram", "keep_available", false, &ReadBytes<&C::keep_available_bytes>, kSet<&C::keep_available_bytes>},
    {"nvme", "directories", false, &ReadDirectories, kSet<&C::nvme_directories>},
    {"nvme", "size", false, &ReadNvmeSize, kSet<&C::nvme>},
    {"nvme", "engine", false, &ReadChoice<&C::nvme_engine, kEngines>, kSet<&C::nvme_engine>},
    {"nvme", "sync", false, &ReadFlag<&C::nvme_sync>, kSet<&C::nvme_sync>},
    {"nvme", "segment", false, &ReadSegment, kSet<&C::nvme_segment_bytes>},
    {"nvme", "write_budget", false, &ReadWriteBudget<&C::nvme_write_bytes_per_second>, kSet<&C::nvme_write_bytes_per_second>},
    {"nvme", "written_part", false, &ReadWrittenPart, kSet<&C::nvme_written_part>},
    {"", kTier, false, &ReadTierList, kSet<&C::tiers>},
};
// clang-format on

// The keys of one section, as ReadTable() takes them.
std::vector<TomlKey> KeysIn(std::string_view section, NodeConfig* config) {
  std::vector<TomlKey> keys;
  for (const Setting& key : kKeys) {
    if (key.section != section) continue;
    keys.push_back({std::string(key.name), [&key, config](const TomlValue& value) {
                      config->places.by_key[key.Name()] = value.where();
                      return key.read(value, config);
                    }});
  }
  return keys;
}

// A key that is known, but elsewhere in the file.
Status ExplainMisplaced(const std::string& name, const TomlValue& value) {
  std::vector<std::string> places;
  for (const Setting& key : kKeys) {
    if (key.name != name || value.is_table()) continue;
    places.push_back(key.section.empty() ? "above the first [section]"
                                         : fmt::format("in [{}]", key.section));
  }
  if (places.empty()) return Status();
  return value.Wrong(fmt::format("'{}' belongs {}", name, fmt::join(places, " or ")));
}

const TomlValue* Find(const TomlValue& table, std::string_view name) {
  for (const auto& [key, value] : table.table()) {
    if (key == name) return &value;
  }
  return nullptr;
}

// ---- The command line ----

std::string AbsolutePath(const std::string& text) {
  std::error_code error;
  return NormalPath(std::filesystem::absolute(text, error).string());
}

Status ForOption(std::string_view option, const Status& status) {
  return status.ok() ? status : Invalid(fmt::format("{}: {}", option, status.message()));
}

// "DIR" or "DIR:SIZE"; a size of 0 is none.
Result<std::pair<std::string, uint64_t>> ParseDrive(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string directory = text.substr(0, colon);
  if (directory.empty()) {
    return Invalid(
        fmt::format("'{}' names no directory; write DIR or DIR:SIZE, as in "
                    "/mnt/nvme0:500GiB",
                    text));
  }
  if (colon == std::string::npos) return std::pair(AbsolutePath(directory), uint64_t{0});
  AQ_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(text.substr(colon + 1)));
  if (bytes < kLeastDriveBytes) {
    return Invalid(fmt::format("{} is too little for a drive; give at least {}", SizeText(bytes),
                               SizeText(kLeastDriveBytes)));
  }
  return std::pair(AbsolutePath(directory), bytes);
}

Status SetDrives(const std::vector<std::string>& drives, NodeConfig* config) {
  std::vector<std::string> directories;
  uint64_t drive_bytes = 0;
  for (const std::string& text : drives) {
    if (text == kOff) {
      if (drives.size() == 1) break;
      return Invalid("'off' stands alone: it means no NVMe at all");
    }
    AQ_ASSIGN_OR_RETURN(const auto drive, ParseDrive(text));
    directories.push_back(drive.first);
    if (drive.second == 0) continue;
    if (drive_bytes != 0 && drive_bytes != drive.second) {
      return Invalid(
          fmt::format("{} and {}: every drive takes the same share, so give one size, "
                      "that of the smallest",
                      SizeText(drive_bytes), SizeText(drive.second)));
    }
    drive_bytes = drive.second;
  }
  if (drive_bytes != 0) {
    config->nvme = {.kind = SizeChoice::Kind::kBytes, .value = drive_bytes * directories.size()};
  }
  config->nvme_directories = std::move(directories);
  return CheckDrives(*config);
}

template <class Names, class Choice>
Status SetChoice(const std::optional<std::string>& given, const Names& names, Choice* choice) {
  if (!given.has_value()) return Status();
  const auto found = std::find(names.begin(), names.end(), *given);
  if (found == names.end()) {
    return Invalid(fmt::format("'{}' is not one of {}", *given, fmt::join(names, ", ")));
  }
  *choice = static_cast<Choice>(found - names.begin());
  return Status();
}

using O = NodeOverrides;
constexpr NodeOption kOptions[] = {
    {"--config", "FILE", "Read this file first (etc/aquifer.toml documents it; default: none)",
     &O::config, nullptr},
    {"--socket", "PATH",
     "Where engines connect (default: /run/aquifer/node.sock, else a place of this user's)",
     &O::socket, nullptr},
    {"--http", "ADDRESS", "Where metrics and the JSON API are, or off (default: 127.0.0.1:9470)",
     &O::http, nullptr},
    {"--dram", "SIZE", "Memory for blocks: 16GiB, 40% or auto (default: a quarter of what is free)",
     &O::dram, nullptr},
    {"--nvme", "DIR[:SIZE]", "A drive for blocks, and how much of it; may be repeated; or off",
     nullptr, &O::nvme},
    {"--record", "FILE", "Write a trace of requests, with no content, to this file; or off",
     &O::record, nullptr},
    {"--log-level", "LEVEL",
     "Leave out of the log what is below: info, warning or error (default: info)", &O::log_level,
     nullptr},
    {"--log-format", "FORMAT", "How lines of the log are written: text or json (default: text)",
     &O::log_format, nullptr},
};

}  // namespace

Status AtKey(const KeyPlaces& places, std::string_view key, const Status& status) {
  if (status.ok()) return status;
  return WithPlace(places, Status(status.code(), fmt::format("{}: {}", key, status.message())));
}

Status WithPlace(const KeyPlaces& places, const Status& status) {
  const std::string& message = status.message();
  const auto found = places.by_key.find(message.substr(0, message.find_first_of(": ")));
  if (found == places.by_key.end()) return status;
  return Status(status.code(), found->second + ": " + message);
}

Result<NodeConfig> ParseNodeConfig(std::string_view text, const std::string& file) {
  AQ_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, file));
  NodeConfig config;
  std::vector<TomlKey> keys = KeysIn("", &config);
  for (const std::string section : {"dram", "nvme"}) {
    keys.push_back({section, [&config, section](const TomlValue& value) {
                      return ReadTable(value, KeysIn(section, &config), ExplainMisplaced);
                    }});
  }
  AQ_RETURN_IF_ERROR(ReadTable(root, keys, ExplainMisplaced));
  // These compare values that are right each by itself.
  Mistakes mistakes;
  mistakes.Add(WithPlace(config.places, CheckDrives(config)));
  if (const TomlValue* key_store = Find(root, "key_store")) {
    mistakes.Add(CheckKeyStore(*key_store, config));
  }
  AQ_RETURN_IF_ERROR(mistakes.All());
  return config;
}

Result<NodeConfig> ReadNodeConfig(const std::string& path) {
  AQ_ASSIGN_OR_RETURN(const std::string text, ReadSettingsFile(path));
  return ParseNodeConfig(text, path);
}

std::span<const NodeOption> NodeOptions() { return kOptions; }

Status ApplyOverrides(const NodeOverrides& overrides, NodeConfig* config) {
  Mistakes mistakes;
  const auto apply = [&](std::string_view option, const Status& status,
                         std::initializer_list<const char*> keys) {
    mistakes.Add(ForOption(option, status));
    for (const char* const key : keys) config->places.by_key[key] = option;
  };
  if (overrides.socket.has_value()) {
    const std::string& path = *overrides.socket;
    apply("--socket",
          path.empty() ? Invalid("the path is empty; write one, or auto")
                       : SetSocket(path == kAuto ? "" : AbsolutePath(path), config),
          {"socket"});
  }
  if (overrides.http.has_value()) apply("--http", SetHttp(*overrides.http, config), {});
  if (overrides.dram.has_value()) {
    const Result<SizeChoice> size = ParseDram(*overrides.dram);
    if (size.ok()) config->dram = *size;
    apply("--dram", size.status(), {"dram.size"});
  }
  if (!overrides.nvme.empty()) {
    apply("--nvme", SetDrives(overrides.nvme, config), {"nvme.directories", "nvme.size"});
  }
  if (overrides.record.has_value()) {
    const std::string& path = *overrides.record;
    config->record_file = path.empty() || path == kOff ? "" : AbsolutePath(path);
    apply("--record", path.empty() ? Invalid("the path is empty; write one, or off") : Status(),
          {"record"});
  }
  apply("--log-level", SetChoice(overrides.log_level, kLogLevels, &config->log_level), {});
  apply("--log-format", SetChoice(overrides.log_format, kLogFormats, &config->log_format), {});
  return mistakes.All();
}

Result<NodeConfig> LoadNodeConfig(const NodeOverrides& overrides) {
  NodeConfig config;
  Mistakes mistakes;
  if (overrides.config.has_value()) {
    Result<NodeConfig> read = ReadNodeConfig(*overrides.config);
    mistakes.Add(read.status());
    if (read.ok()) config = *std::move(read);
  }
  mistakes.Add(ApplyOverrides(overrides, &config));
  AQ_RETURN_IF_ERROR(mistakes.All());
  return config;
}

ReloadChanges CompareForReload(const NodeConfig& running, const NodeConfig& next) {
  ReloadChanges changes;
  for (const Setting& key : kKeys) {
    if (key.set.same(running, next)) continue;
    (key.reloadable ? changes.applied : changes.need_restart).push_back(key.Name());
  }
  return changes;
}

void CopyReloadable(const NodeConfig& next, NodeConfig* running) {
  for (const Setting& key : kKeys) {
    if (key.reloadable) key.set.copy(next, running);
  }
}

std::vector<std::string> NodeConfigKeys() {
  std::vector<std::string> names;
  for (const Setting& key : kKeys) {
    if (key.name != kTier) names.push_back(key.Name());
  }
  for (const std::string& name : TierConfigKeys())
    names.push_back(fmt::format("{}.{}", kTier, name));
  return names;
}

}  // namespace aquifer
