#include "reference/model/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/crypto/sha256.h"
#include "base/descriptor.h"
#include "reference/model/bfloat16.h"
#include "reference/model/llama_config.h"
#include "reference/model/shallow_json.h"

namespace aquifer::reference {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxTextBytes = 100 << 20;  // Of JSON: the format's own limit for a header.

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

Result<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::ate);
  const std::streamoff size = file ? std::streamoff{file.tellg()} : -1;
  if (size < 0) return Status(Code::kNotFound, fmt::format("cannot read {}", path));
  if (static_cast<uint64_t>(size) > kMaxTextBytes) return Invalid(path + " is too long");
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0).read(text.data(), size);
  return text;
}

float FromFloat16(uint16_t bits) {
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  const int exponent = bits >> 10 & 0x1F;
  const auto fraction = static_cast<float>(bits & 0x3FF);
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  if (exponent == 31) return sign * (fraction == 0 ? INFINITY : NAN);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

struct StoredTensor {
  std::string dtype;
  std::vector<size_t> dimensions;
  std::span<const std::byte> bytes;
};

using StoredTensors = std::map<std::string, StoredTensor>;

Result<uint64_t> WholeNumber(const json& value) {
  if (!value.is_number_unsigned()) return Invalid("there is no whole number where one is needed");
  return value.get<uint64_t>();
}

Result<StoredTensor> ReadEntry(const json& entry, std::span<const std::byte> data) {
  const auto member = [&entry](const char* name) {
    return entry.is_object() && entry.contains(name) ? entry[name] : json();
  };
  const json dtype = member("dtype");
  const json shape = member("shape");
  const json offsets = member("data_offsets");
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
    return Invalid("it lacks its dtype, its shape or its data_offsets");
  }
  StoredTensor tensor{.dtype = dtype.get<std::string>(), .dimensions = {}, .bytes = {}};
  for (const json& value : shape) {
    AQ_ASSIGN_OR_RETURN(tensor.dimensions.emplace_back(), WholeNumber(value));
  }
  AQ_ASSIGN_OR_RETURN(const uint64_t begin, WholeNumber(offsets[0]));
  AQ_ASSIGN_OR_RETURN(const uint64_t end, WholeNumber(offsets[1]));
  if (begin > end || end > data.size()) return Invalid("it lies outside of the file");
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

// The tensors that a file's header lists. Their bytes lie in the file's memory.
Result<StoredTensors> ReadTensors(std::span<const std::byte> file) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t length = 0;
  if (file.size() < sizeof(length)) return Invalid("it is too short");
  std::memcpy(&length, file.data(), sizeof(length));
  file = file.subspan(sizeof(length));
  if (length > file.size() || length > kMaxTextBytes) return Invalid("its header is too long");
  const json header =
      ParseShallowObject({reinterpret_cast<const char*>(file.data()), static_cast<size_t>(length)});
  if (!header.is_object()) return Invalid("its header is no JSON object");
  StoredTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    Result<StoredTensor> tensor = ReadEntry(entry, file.subspan(length));
    if (!tensor.ok()) return Invalid(fmt::format("tensor {}: {}", name, tensor.status().message()));
    tensors.emplace(name, *std::move(tensor));
  }
  return tensors;
}

// One file, mapped while this object lives.
class MappedFile {
 public:
  static Result<std::unique_ptr<MappedFile>> Open(const std::string& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info{};
    if (!file.valid() || ::fstat(file.get(), &info) != 0) {
      return Status(Code::kNotFound, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    }
    const auto size = static_cast<size_t>(info.st_size);
    if (size == 0) return Invalid(path + " is empty");
    void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapped == MAP_FAILED) return Status(Code::kUnavailable, std::strerror(errno));
    return std::unique_ptr<MappedFile>(
        new MappedFile({static_cast<const std::byte*>(mapped), size}));
  }
  ~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  const std::span<const std::byte> bytes_;
};

Status CheckShape(const NamedTensor& wanted, const StoredTensor& stored) {
  const std::vector<size_t> expected = wanted.rows == 1
                                           ? std::vector<size_t>{wanted.columns}
                                           : std::vector<size_t>{wanted.rows, wanted.columns};
  if (stored.dimensions == expected) return Status();
  return Invalid(fmt::format("{} has another shape than config.json says", wanted.name));
}

template <class Element, class ToFloat>
Status Fill(const NamedTensor& wanted, const StoredTensor& stored, ToFloat to_float,
            std::vector<float>* values) {
  // Checked before memory is taken, because the header may lie.
  if (stored.bytes.size() != wanted.rows * wanted.columns * sizeof(Element)) {
    return Invalid(fmt::format("{} has the wrong number of bytes", wanted.name));
  }
  values->resize(wanted.rows * wanted.columns);
  for (size_t i = 0; i < values->size(); ++i) {
    Element element;
    std::memcpy(&element, stored.bytes.data() + i * sizeof(Element), sizeof(Element));
    (*values)[i] = to_float(element);
  }
  return Status();
}

Status Convert(const NamedTensor& wanted, const StoredTensor& stored, std::vector<float>* values) {
  if (stored.dtype == "F32") {
    return Fill<float>(wanted, stored, [](float value) { return value; }, values);
  }
  if (stored.dtype == "BF16") return Fill<uint16_t>(wanted, stored, FromBFloat16, values);
  if (stored.dtype == "F16") return Fill<uint16_t>(wanted, stored, FromFloat16, values);
  return Invalid(
      fmt::format("{} is of type {}; there are F32, F16 and BF16", wanted.name, stored.dtype));
}

// Reads a tensor as floats. Returns kInvalid if it is missing or has another shape.
Status ReadTensor(std::span<const StoredTensors> files, const NamedTensor& wanted,
                  std::vector<float>* values, Sha256* hash) {
  for (const StoredTensors& tensors : files) {
    const auto found = tensors.find(wanted.name);
    if (found == tensors.end()) continue;
    AQ_RETURN_IF_ERROR(CheckShape(wanted, found->second));
    hash->Update(wanted.name + " " + found->second.dtype);
    hash->Update(found->second.bytes);
    return Convert(wanted, found->second, values);
  }
  return Invalid(fmt::format("there is no tensor {}", wanted.name));
}

Result<std::shared_ptr<const Weights>> MakeWeights(const LlamaConfig& config,
                                                   std::span<const StoredTensors> files) {
  auto weights = std::make_shared<Weights>();
  weights->shape = config.shape;
  Sha256 hash;
  hash.Update("checkpoint 1, " + config.shape.ToString());
  std::vector<float> values;
  for (const NamedTensor& tensor : TensorsOf(config.shape, config.head_is_embedding)) {
    AQ_RETURN_IF_ERROR(ReadTensor(files, tensor, &values, &hash));
    SetTensor(weights.get(), tensor, values);
  }
  FinishWeights(weights.get(), config.head_is_embedding);
  weights->digest = hash.Finish();
  return std::shared_ptr<const Weights>(std::move(weights));
}

// The files of a checkpoint, by name.
Result<std::set<std::string>> FileNames(const std::string& directory) {
  const std::string index = directory + "/model.safetensors.index.json";
  if (!std::filesystem::exists(index)) return std::set<std::string>{"model.safetensors"};
  AQ_ASSIGN_OR_RETURN(const std::string text, ReadText(index));
  const json parsed = ParseShallowObject(text);
  if (!parsed.is_object() || !parsed.contains("weight_map")) {
    return Invalid(index + " has no weight_map");
  }
  std::set<std::string> names;
  for (const json& name : parsed["weight_map"]) {
    if (!name.is_string()) return Invalid(index + ": weight_map names no files");
    const auto [added, is_new] = names.insert(name.get<std::string>());
    if (added->find('/') != std::string::npos) return Invalid(index + ": a file lies elsewhere");
  }
  return names;
}

}  // namespace

Result<std::shared_ptr<const Weights>> LoadCheckpoint(const std::string& directory) {
  AQ_ASSIGN_OR_RETURN(const std::string text, ReadText(directory + "/config.json"));
  AQ_ASSIGN_OR_RETURN(const LlamaConfig config, ParseLlamaConfig(text));
  AQ_ASSIGN_OR_RETURN(const std::set<std::string> names, FileNames(directory));
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<StoredTensors> tensors;
  for (const std::string& name : names) {
    AQ_ASSIGN_OR_RETURN(files.emplace_back(),
                        MappedFile::Open(fmt::format("{}/{}", directory, name)));
    Result<StoredTensors> read = ReadTensors(files.back()->bytes());
    if (!read.ok()) return Invalid(fmt::format("{}: {}", name, read.status().message()));
    tensors.push_back(*std::move(read));
  }
  return MakeWeights(config, tensors);
}

Result<std::shared_ptr<const Weights>> ParseCheckpoint(std::string_view config,
                                                       std::span<const std::byte> file) {
  AQ_ASSIGN_OR_RETURN(const LlamaConfig parsed, ParseLlamaConfig(config));
  AQ_ASSIGN_OR_RETURN(const StoredTensors tensors, ReadTensors(file));
  return MakeWeights(parsed, std::span(&tensors, 1));
}

}  // namespace aquifer::reference
