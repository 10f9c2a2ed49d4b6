#include "block/tensor/engine_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace aquifer {
namespace {

Status Bad(std::string message) { return Status(Code::kInvalid, std::move(message)); }

// A product that no memory has when it overflows: CompileEngineLayout() then refuses the stride.
uint64_t Multiply(uint64_t x, uint64_t y) {
  uint64_t product = 0;
  return __builtin_mul_overflow(x, y, &product) ? UINT64_MAX : product;
}

bool Has(std::string_view axes, char axis) { return axes.find(axis) != std::string_view::npos; }

// One tensor whose dimensions have the names in `axes`.
class NamedTensor {
 public:
  NamedTensor(const EngineTensor& tensor, std::string_view axes) : tensor_(tensor), axes_(axes) {}

  uint64_t Size(char axis) const { return tensor_.shape[axes_.find(axis)]; }
  uint64_t StrideBytes(char axis) const {
    return Multiply(tensor_.strides[axes_.find(axis)], tensor_.element_bytes);
  }
  uint64_t ContentBytes() const { return Multiply(Size('C'), tensor_.element_bytes); }

  EnginePlane Plane(uint64_t offset) const {
    const auto memory = tensor_.memory;
    const uint64_t skipped = std::min<uint64_t>(offset, memory.size());
    return {.base = memory.data() + skipped,
            .bytes = memory.size() - skipped,
            .page_stride = StrideBytes('B'),
            .head_stride = Has(axes_, 'H') ? StrideBytes('H') : 0,
            .token_stride = StrideBytes('N')};
  }

 private:
  const EngineTensor& tensor_;
  std::string_view axes_;
};

Status CheckRank(const EngineTensor& tensor, size_t dimensions, std::string_view name) {
  if (tensor.shape.size() != dimensions || tensor.strides.size() != dimensions) {
    return Bad(fmt::format("{}: {} dimensions and {} strides, where {} are expected", name,
                           tensor.shape.size(), tensor.strides.size(), dimensions));
  }
  if (tensor.element_bytes == 0) return Bad(fmt::format("{}: element_bytes is zero", name));
  return Status();
}

// The group, once it is known to be one.
Result<const KvGroup*> Find(const EngineGroup& group) {
  if (group.layout == nullptr || group.group >= group.layout->groups.size()) {
    return Bad(fmt::format("group {} is not in the layout", group.group));
  }
  return &group.layout->groups[group.group];
}

// A family of tensors, one a layer and all of one shape, being turned into planes.
class Family {
 public:
  Family(const EngineGroup& group, const KvGroup& kv, std::string_view axes)
      : kv_(kv), axes_(axes) {
    engine_.heads = group.heads;
  }

  uint64_t key_bytes() const { return uint64_t{kv_.key_dim} * DTypeBytes(kv_.dtype); }
  uint64_t value_bytes() const { return uint64_t{kv_.value_dim} * DTypeBytes(kv_.dtype); }
  EngineLayout* engine() { return &engine_; }

  Result<NamedTensor> Take(const EngineTensor& tensor, uint64_t content_bytes, size_t index,
                           std::string_view what = "tensor") {
    const std::string name = fmt::format("{} {}", what, index);
    AQ_RETURN_IF_ERROR(CheckRank(tensor, axes_.size(), name));
    const NamedTensor named(tensor, axes_);
    const auto expect = [&](char axis, uint64_t have, uint64_t want, std::string_view of) {
      if (have == want) return Status();
      return Bad(fmt::format("{}: {} is {}, but {} {}; the shape is [{}]", name, axis, have, of,
                             want, fmt::join(axes_, ", ")));
    };
    AQ_RETURN_IF_ERROR(
        expect('C', named.ContentBytes(), content_bytes, "its bytes by the layout are"));
    if (tensor.strides.back() != 1) {
      return Bad(fmt::format("{}: the elements of a vector do not lie together (stride {})", name,
                             tensor.strides.back()));
    }
    if (Has(axes_, '2')) AQ_RETURN_IF_ERROR(expect('2', named.Size('2'), 2, "K and V are"));
    if (Has(axes_, 'H')) {
      AQ_RETURN_IF_ERROR(
          expect('H', named.Size('H'), engine_.heads.count(), "the rank's heads are"));
    }
    if (engine_.pages == 0) {
      if (named.Size('N') > UINT32_MAX) return Bad(fmt::format("{}: N is too large", name));
      engine_.pages = named.Size('B');
      engine_.page_tokens = static_cast<uint32_t>(named.Size('N'));
    }
    AQ_RETURN_IF_ERROR(expect('B', named.Size('B'), engine_.pages, "the first tensor's is"));
    AQ_RETURN_IF_ERROR(expect('N', named.Size('N'), engine_.page_tokens, "the first tensor's is"));
    return named;
  }

  void AddPlane(const EnginePlane& plane) { engine_.planes.push_back(plane); }

  EngineLayout Finish() { return std::move(engine_); }

 private:
  const KvGroup& kv_;
  const std::string_view axes_;
  EngineLayout engine_;
};

// K and V a fixed way apart in one tensor, that way being an axis of its own.
Result<EngineLayout> WithKvAxis(const EngineGroup& group, std::span<const EngineTensor> layers,
                                std::string_view axes) {
  AQ_ASSIGN_OR_RETURN(const KvGroup* kv, Find(group));
  if (kv->key_dim != kv->value_dim) {
    return Bad(
        fmt::format("key_dim {} and value_dim {} do not fit into one tensor of the shape "
                    "[{}]",
                    kv->key_dim, kv->value_dim, fmt::join(axes, ", ")));
  }
  Family family(group, *kv, axes);
  for (size_t i = 0; i < layers.size(); ++i) {
    AQ_ASSIGN_OR_RETURN(const NamedTensor tensor, family.Take(layers[i], family.key_bytes(), i));
    family.AddPlane(tensor.Plane(0));
    family.AddPlane(tensor.Plane(tensor.StrideBytes('2')));
  }
  return family.Finish();
}

// K and V in tensors of their own, or only `keys` where the group has no V.
Result<EngineLayout> Apart(const EngineGroup& group, std::span<const EngineTensor> keys,
                           std::span<const EngineTensor> values, std::string_view axes) {
  AQ_ASSIGN_OR_RETURN(const KvGroup* kv, Find(group));
  const size_t wanted = kv->value_dim == 0 ? 0 : keys.size();
  if (values.size() != wanted) {
    return Bad(fmt::format("{} tensors of V, where {} are expected", values.size(), wanted));
  }
  Family family(group, *kv, axes);
  for (size_t i = 0; i < keys.size(); ++i) {
    AQ_ASSIGN_OR_RETURN(const NamedTensor key, family.Take(keys[i], family.key_bytes(), i, "K"));
    family.AddPlane(key.Plane(0));
    if (values.empty()) continue;
    AQ_ASSIGN_OR_RETURN(const NamedTensor value,
                        family.Take(values[i], family.value_bytes(), i, "V"));
    family.AddPlane(value.Plane(0));
  }
  return family.Finish();
}

// Slots of single tokens, seen as pages of `page_tokens`.
Result<std::vector<EngineTensor>> AsPages(std::span<const EngineTensor> tensors,
                                          uint32_t page_tokens) {
  std::vector<EngineTensor> pages;
  for (size_t i = 0; i < tensors.size(); ++i) {
    EngineTensor tensor = tensors[i];
    AQ_RETURN_IF_ERROR(CheckRank(tensor, 3, fmt::format("tensor {}", i)));
    const uint64_t token_stride = tensor.strides[0];
    tensor.shape = {tensor.shape[0] / page_tokens, page_tokens, tensor.shape[1], tensor.shape[2]};
    tensor.strides = {Multiply(token_stride, page_tokens), token_stride, tensor.strides[1],
                      tensor.strides[2]};
    pages.push_back(std::move(tensor));
  }
  return pages;
}

// The bytes of a page, [...] of [B, ...], when they are one run.
Result<uint64_t> PageBytes(const EngineTensor& tensor, size_t index) {
  const std::string name = fmt::format("tensor {}", index);
  if (tensor.shape.empty()) return Bad(fmt::format("{}: it has no dimension B", name));
  AQ_RETURN_IF_ERROR(CheckRank(tensor, tensor.shape.size(), name));
  uint64_t elements = 1;
  for (size_t axis = tensor.shape.size(); axis-- > 1;) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != elements) {
      return Bad(
          fmt::format("{}: a page does not lie in one run (dimension {} has stride {}, not "
                      "{})",
                      name, axis, tensor.strides[axis], elements));
    }
    elements = Multiply(elements, tensor.shape[axis]);
  }
  return Multiply(elements, tensor.element_bytes);
}

}  // namespace

Result<std::vector<EngineTensor>> LayersOf(const EngineTensor& all_layers) {
  if (all_layers.shape.size() < 2 || all_layers.strides.size() != all_layers.shape.size()) {
    return Bad(fmt::format("{} dimensions and {} strides are no layers of tensors",
                           all_layers.shape.size(), all_layers.strides.size()));
  }
  const uint64_t layers = all_layers.shape[0];
  const uint64_t stride = Multiply(all_layers.strides[0], all_layers.element_bytes);
  if (layers == 0 || Multiply(layers - 1, stride) >= all_layers.memory.size()) {
    return Bad(fmt::format("{} layers {} bytes apart do not lie in a tensor of {} bytes", layers,
                           stride, all_layers.memory.size()));
  }
  // A stride of zero would pass for any number of layers.
  if (layers > all_layers.memory.size()) return Bad(fmt::format("{} layers are too many", layers));
  std::vector<EngineTensor> tensors;
  tensors.reserve(layers);
  for (uint64_t layer = 0; layer < layers; ++layer) {
    tensors.push_back({.memory = all_layers.memory.subspan(layer * stride),
                       .shape = {all_layers.shape.begin() + 1, all_layers.shape.end()},
                       .strides = {all_layers.strides.begin() + 1, all_layers.strides.end()},
                       .element_bytes = all_layers.element_bytes});
  }
  return tensors;
}

Result<EngineLayout> VllmKvFirst(const EngineGroup& group, std::span<const EngineTensor> layers) {
  return WithKvAxis(group, layers, "2BNHC");
}

Result<EngineLayout> VllmPageFirst(const EngineGroup& group, std::span<const EngineTensor> layers) {
  return WithKvAxis(group, layers, "B2NHC");
}

Result<EngineLayout> VllmFused(const EngineGroup& group, std::span<const EngineTensor> layers) {
  AQ_ASSIGN_OR_RETURN(const KvGroup* kv, Find(group));
  Family family(group, *kv, "BHNC");
  const uint64_t content_bytes = family.key_bytes() + family.value_bytes();
  for (size_t i = 0; i < layers.size(); ++i) {
    AQ_ASSIGN_OR_RETURN(const NamedTensor tensor, family.Take(layers[i], content_bytes, i));
    family.AddPlane(tensor.Plane(0));
    if (kv->value_dim != 0) family.AddPlane(tensor.Plane(family.key_bytes()));
  }
  return family.Finish();
}

Result<EngineLayout> VllmCpuPacked(const EngineGroup& group, std::span<const EngineTensor> layers) {
  AQ_ASSIGN_OR_RETURN(const KvGroup* kv, Find(group));
  Family family(group, *kv, "BHNC");
  family.engine()->tokens_packed = true;
  const uint64_t content_bytes = family.key_bytes() + family.value_bytes();
  for (size_t i = 0; i < layers.size(); ++i) {
    AQ_ASSIGN_OR_RETURN(const NamedTensor tensor, family.Take(layers[i], content_bytes, i));
    if (tensor.Size('N') > 1 && tensor.StrideBytes('N') != content_bytes) {
      return Bad(fmt::format("tensor {}: the bytes of a page's head do not lie together", i));
    }
    EnginePlane key = tensor.Plane(0);
    EnginePlane value = tensor.Plane(Multiply(tensor.Size('N'), family.key_bytes()));
    key.token_stride = family.key_bytes();
    value.token_stride = family.value_bytes();
    family.AddPlane(key);
    if (kv->value_dim != 0) family.AddPlane(value);
  }
  return family.Finish();
}

Result<EngineLayout> VllmLatent(const EngineGroup& group, std::span<const EngineTensor> layers) {
  AQ_ASSIGN_OR_RETURN(const KvGroup* kv, Find(group));
  if (kv->kind != KvKind::kLatent) return Bad("the group is not a latent one");
  return Apart(group, layers, {}, "BNC");
}

Result<EngineLayout> PagedApart(const EngineGroup& group, std::span<const EngineTensor> keys,
                                std::span<const EngineTensor> values) {
  return Apart(group, keys, values, "BNHC");
}

Result<EngineLayout> SglangSlots(const EngineGroup& group, std::span<const EngineTensor> keys,
                                 std::span<const EngineTensor> values, uint32_t page_tokens) {
  if (page_tokens == 0) return Bad("page_tokens is zero");
  AQ_ASSIGN_OR_RETURN(const auto key_pages, AsPages(keys, page_tokens));
  AQ_ASSIGN_OR_RETURN(const auto value_pages, AsPages(values, page_tokens));
  return Apart(group, key_pages, value_pages, "BNHC");
}

Result<EngineLayout> TransformersSequences(const EngineGroup& group,
                                           std::span<const EngineTensor> keys,
                                           std::span<const EngineTensor> values) {
  AQ_ASSIGN_OR_RETURN(EngineLayout engine, Apart(group, keys, values, "BHNC"));
  const uint32_t block = group.layout->tokens_per_block;
  if (block == 0 || engine.page_tokens < block) {
    return Bad(
        fmt::format("sequences of {} tokens hold no whole block of {}", engine.page_tokens, block));
  }
  engine.page_tokens -= engine.page_tokens % block;
  return engine;
}

Result<EngineLayout> OpaquePages(const EngineGroup& group, std::span<const EngineTensor> tensors,
                                 uint32_t page_tokens) {
  EngineLayout engine;
  engine.heads = group.heads;
  engine.page_tokens = page_tokens;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const EngineTensor& tensor = tensors[i];
    AQ_ASSIGN_OR_RETURN(const uint64_t page_bytes, PageBytes(tensor, i));
    if (i == 0) {
      engine.pages = tensor.shape[0];
      engine.opaque_page_bytes = page_bytes;
    }
    if (tensor.shape[0] != engine.pages || page_bytes != engine.opaque_page_bytes) {
      return Bad(fmt::format("tensor {}: {} pages of {} bytes, but the first has {} of {}", i,
                             tensor.shape[0], page_bytes, engine.pages, engine.opaque_page_bytes));
    }
    engine.planes.push_back({.base = tensor.memory.data(),
                             .bytes = tensor.memory.size(),
                             .page_stride = Multiply(tensor.strides[0], tensor.element_bytes),
                             .head_stride = 0,
                             .token_stride = 0});
  }
  return engine;
}

}  // namespace aquifer
