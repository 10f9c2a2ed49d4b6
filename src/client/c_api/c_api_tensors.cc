// The C ABI's tensors: an engine's own, described once, and the copies between them and slots.
#include <span>
#include <utility>

#include "block/tensor/engine_families.h"
#include "block/tensor/gather_scatter.h"
#include "block/tensor/head_range.h"
#include "client/c_api/c_api.h"

using aquifer::CheckNotNull;
using aquifer::Code;
using aquifer::EngineTensor;
using aquifer::Guarded;
using aquifer::Result;
using aquifer::Status;

static_assert(AQUIFER_VERIFY_COPYING == 0, "the default of aquifer_load_args");

namespace {

constexpr size_t kMaxTensors = 4096;
constexpr uint32_t kMaxDimensions = 8;

Status ReadTensor(const aquifer_tensor& given, EngineTensor* tensor) {
  AQ_RETURN_IF_ERROR(CheckNotNull(given.data, "tensors[].data"));
  AQ_RETURN_IF_ERROR(aquifer::CheckRange<uint32_t>(given.dimension_count, 1, kMaxDimensions,
                                                   "tensors[].dimension_count"));
  AQ_RETURN_IF_ERROR(CheckNotNull(given.shape, "tensors[].shape"));
  AQ_RETURN_IF_ERROR(CheckNotNull(given.strides, "tensors[].strides"));
  tensor->memory = {static_cast<std::byte*>(given.data), given.bytes};
  tensor->shape.assign(given.shape, given.shape + given.dimension_count);
  tensor->strides.assign(given.strides, given.strides + given.dimension_count);
  tensor->element_bytes = given.element_bytes;
  return Status();
}

// One tensor a layer, whichever way they were given.
Status ReadTensors(const aquifer_tensor* given, size_t count, bool layers_in_front,
                   std::vector<EngineTensor>* tensors) {
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(given, count, "tensors"));
  AQ_RETURN_IF_ERROR(aquifer::CheckRange<size_t>(count, 0, kMaxTensors, "tensor_count"));
  for (const aquifer_tensor& tensor : std::span(given, count)) {
    EngineTensor read;
    AQ_RETURN_IF_ERROR(ReadTensor(tensor, &read));
    if (!layers_in_front) {
      tensors->push_back(std::move(read));
      continue;
    }
    AQ_ASSIGN_OR_RETURN(std::vector<EngineTensor> layers, aquifer::LayersOf(read));
    for (EngineTensor& layer : layers) tensors->push_back(std::move(layer));
  }
  return Status();
}

Result<aquifer::EngineLayout> Describe(const aquifer_tensors& given,
                                       const aquifer::EngineGroup& group,
                                       std::span<const EngineTensor> tensors,
                                       std::span<const EngineTensor> values) {
  switch (given.family) {
    case AQUIFER_TENSORS_KV_FIRST:
      return aquifer::VllmKvFirst(group, tensors);
    case AQUIFER_TENSORS_PAGE_FIRST:
      return aquifer::VllmPageFirst(group, tensors);
    case AQUIFER_TENSORS_FUSED:
      return aquifer::VllmFused(group, tensors);
    case AQUIFER_TENSORS_CPU_PACKED:
      return aquifer::VllmCpuPacked(group, tensors);
    case AQUIFER_TENSORS_LATENT:
      return aquifer::VllmLatent(group, tensors);
    case AQUIFER_TENSORS_APART:
      return aquifer::PagedApart(group, tensors, values);
    case AQUIFER_TENSORS_SLOTS:
      return aquifer::SglangSlots(group, tensors, values, given.page_tokens);
    case AQUIFER_TENSORS_SEQUENCES:
      return aquifer::TransformersSequences(group, tensors, values);
    case AQUIFER_TENSORS_OPAQUE:
      return aquifer::OpaquePages(group, tensors, given.page_tokens);
    default:
      break;
  }
  return Status(Code::kInvalid,
                "tensors.family is " + std::to_string(given.family) + ", which there is not");
}

// The GPU that has them all, or the host.
Result<int> DeviceOf(std::span<const EngineTensor> tensors, std::span<const EngineTensor> values) {
  AQ_ASSIGN_OR_RETURN(const int device, aquifer::DeviceOfMemory(tensors.front().memory.data()));
  for (const std::span<const EngineTensor> some : {tensors, values}) {
    for (const EngineTensor& tensor : some) {
      AQ_ASSIGN_OR_RETURN(const int its, aquifer::DeviceOfMemory(tensor.memory.data()));
      if (its != device) {
        return Status(Code::kInvalid, "the tensors are not all in the memory of one device");
      }
    }
  }
  return device;
}

Status MapTensors(const aquifer_tensors& given, aquifer_tensor_map* made) {
  aquifer::Layout layout;
  AQ_RETURN_IF_ERROR(aquifer::ReadLayout(given.layout, &layout));
  AQ_RETURN_IF_ERROR(
      aquifer::CheckRange<uint32_t>(given.group, 0, layout.groups.size() - 1, "tensors.group"));
  const aquifer::KvGroup& kv = layout.groups[given.group];
  const aquifer::HeadRange all{.begin = 0, .end = kv.kv_heads};
  aquifer::EngineGroup group{.layout = &layout, .group = given.group, .heads = all};
  if (given.head_begin != 0 || given.head_end != 0) {
    group.heads = {.begin = given.head_begin, .end = given.head_end};
  }
  std::vector<EngineTensor> tensors;
  std::vector<EngineTensor> values;
  const bool in_front = given.layers_in_front != 0;
  AQ_RETURN_IF_ERROR(ReadTensors(given.tensors, given.tensor_count, in_front, &tensors));
  AQ_RETURN_IF_ERROR(ReadTensors(given.values, given.value_count, in_front, &values));
  AQ_ASSIGN_OR_RETURN(const aquifer::EngineLayout engine, Describe(given, group, tensors, values));
  AQ_ASSIGN_OR_RETURN(made->map, aquifer::CompileEngineLayout(layout, given.group, engine));
  if (!(group.heads == all)) made->committed_heads = group.heads;
  AQ_ASSIGN_OR_RETURN(made->device, DeviceOf(tensors, values));
  if (made->device != aquifer::kHostMemory) made->tables = aquifer::MakeMoveTables(made->map);
  return Status();
}

aquifer::BlockPlace PlaceOf(const aquifer_copy_op& op) {
  return {.page_table = {op.pages, op.page_count}, .index = op.block};
}

Status CheckOp(const aquifer_copy_op& op) {
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(op.pages, op.page_count, "ops[].pages"));
  return CheckNotNull(op.slot, "ops[].slot");
}

Status GatherOne(const aquifer::EngineMap& map, aquifer_copy_op* op) {
  AQ_RETURN_IF_ERROR(CheckOp(*op));
  aquifer::GatherOp gather{.place = PlaceOf(*op),
                           .slot = {static_cast<std::byte*>(op->slot), op->slot_bytes},
                           .sums = {},
                           .status = {}};
  aquifer::Gather(map, std::span(&gather, 1));
  op->sums = {.a = gather.sums.a, .b = gather.sums.b};
  return gather.status;
}

Status ScatterOne(const aquifer::EngineMap& map, aquifer::Verify verify, aquifer_copy_op* op) {
  AQ_RETURN_IF_ERROR(CheckOp(*op));
  aquifer::ScatterOp scatter{.place = PlaceOf(*op),
                             .slot = {static_cast<const std::byte*>(op->slot), op->slot_bytes},
                             .checksum = {.low = op->checksum.low, .high = op->checksum.high},
                             .sums = {},
                             .status = {}};
  aquifer::Scatter(map, verify, std::span(&scatter, 1));
  op->sums = {.a = scatter.sums.a, .b = scatter.sums.b};
  return scatter.status;
}

// One block's failure is its own; the last one's text is aquifer_error().
template <class Copy>
Status CopyAll(const aquifer_tensor_map* map, aquifer_copy_op* ops, size_t count, Copy copy) {
  AQ_RETURN_IF_ERROR(CheckNotNull(map, "map"));
  if (map->device != aquifer::kHostMemory) {
    return Status(Code::kInvalid,
                  "the tensors are in a GPU's memory; aquifer_load and aquifer_store copy those");
  }
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(ops, count, "ops"));
  for (aquifer_copy_op& op : std::span(ops, count)) {
    op.sums = {};
    const Status status = copy(&op);
    op.code = status.ok() ? AQUIFER_OK : aquifer::Fail(status.code(), status.message().c_str());
  }
  return Status();
}

}  // namespace

Status aquifer::ReadVerify(int32_t given, Verify* verify) {
  AQ_RETURN_IF_ERROR(
      CheckRange<int32_t>(given, AQUIFER_VERIFY_COPYING, AQUIFER_VERIFY_NEVER, "verify"));
  constexpr Verify kVerify[] = {Verify::kWhileCopying, Verify::kFirst, Verify::kNever};
  *verify = kVerify[given];
  return Status();
}

aquifer_code aquifer_map_tensors(const aquifer_tensors* tensors, aquifer_tensor_map** map) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(map, "map"));
    *map = nullptr;
    aquifer_tensors given;
    AQ_RETURN_IF_ERROR(aquifer::ReadStruct(tensors, "tensors", &given));
    auto made = std::make_unique<aquifer_tensor_map>();
    AQ_RETURN_IF_ERROR(MapTensors(given, made.get()));
    *map = made.release();
    return Status();
  });
}

void aquifer_tensor_map_free(aquifer_tensor_map* map) { delete map; }

aquifer_code aquifer_tensor_map_facts(const aquifer_tensor_map* map, aquifer_tensor_facts* facts) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(map, "map"));
    const aquifer_tensor_facts known{.size = 0,
                                     .tokens_per_block = map->map.tokens_per_block,
                                     .pages_per_block = map->map.pages_per_block,
                                     .blocks_per_page = map->map.blocks_per_page,
                                     .page_count = map->map.pages,
                                     .block_bytes = map->map.block_bytes};
    return aquifer::WriteStruct(known, "facts", facts);
  });
}

aquifer_code aquifer_heads_of_rank(uint32_t kv_heads, uint32_t ranks, uint32_t rank,
                                   uint32_t* head_begin, uint32_t* head_end, int32_t* writes) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckNotNull(head_begin, "head_begin"));
    AQ_RETURN_IF_ERROR(CheckNotNull(head_end, "head_end"));
    AQ_RETURN_IF_ERROR(CheckNotNull(writes, "writes"));
    AQ_ASSIGN_OR_RETURN(const aquifer::RankHeads heads,
                        aquifer::HeadsOfRank(kv_heads, ranks, rank));
    *head_begin = heads.heads.begin;
    *head_end = heads.heads.end;
    *writes = heads.writes ? 1 : 0;
    return Status();
  });
}

aquifer_code aquifer_gather(const aquifer_tensor_map* map, aquifer_copy_op* ops, size_t op_count) {
  return Guarded([&]() -> Status {
    return CopyAll(map, ops, op_count,
                   [&](aquifer_copy_op* op) { return GatherOne(map->map, op); });
  });
}

aquifer_code aquifer_scatter(const aquifer_tensor_map* map, int32_t verify, aquifer_copy_op* ops,
                             size_t op_count) {
  return Guarded([&]() -> Status {
    aquifer::Verify how = aquifer::Verify::kWhileCopying;
    AQ_RETURN_IF_ERROR(aquifer::ReadVerify(verify, &how));
    return CopyAll(map, ops, op_count,
                   [&](aquifer_copy_op* op) { return ScatterOne(map->map, how, op); });
  });
}
