// How fast blocks are sealed and opened, against OpenSSL's cipher alone.
#include <openssl/evp.h>

#include <array>
#include <memory>

#include "base/check.h"
#include "base/crypto/random.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_memory.h"
#include "block/seal.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{2} << 20;
constexpr size_t kBlocks = 64;
constexpr size_t kBatch = 16;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

class SealContest final : public Contest {
 public:
  static Result<std::unique_ptr<Contest>> New(bool opens) {
    auto contest = std::make_unique<SealContest>(opens);
    AQ_ASSIGN_OR_RETURN(contest->plain_, BenchMemory::New(kBlocks * kBlockBytes));
    AQ_ASSIGN_OR_RETURN(contest->sealed_, BenchMemory::New(kBlocks * kBlockBytes));
    FillFromSeed(contest->plain_.bytes(), 1);
    AQ_RETURN_IF_ERROR(contest->SealAll());
    AQ_RETURN_IF_ERROR(contest->OpenAll());
    return std::unique_ptr<Contest>(std::move(contest));
  }

  explicit SealContest(bool opens) : opens_(opens), metas_(kBlocks) {
    key_.id[0] = std::byte{1};
    SystemRandom()->Fill(key_.secret.writable());
    for (BlockMeta& meta : metas_) meta.stored_bytes = kBlockBytes;
  }

  // Once keyed, and without a tag that is looked at: the cipher's own speed.
  Result<double> Limit() override {
    const Context context = NewContext(EVP_aes_256_gcm());
    const Stopwatch watch;
    for (size_t i = 0; i < kBlocks; ++i) Run(context.get(), i);
    return GigabytesPerSecond(kBlocks * kBlockBytes, watch.Seconds());
  }

  Result<double> Ours() override {
    const Stopwatch watch;
    AQ_RETURN_IF_ERROR(opens_ ? OpenAll() : SealAll());
    return GigabytesPerSecond(kBlocks * kBlockBytes, watch.Seconds());
  }

  std::vector<std::string> PeerNames() const override { return {"ChaCha20-Poly1305"}; }
  Result<double> Peer(size_t /*peer*/) override {
    const Context context = NewContext(EVP_chacha20_poly1305());
    const Stopwatch watch;
    for (size_t i = 0; i < kBlocks; ++i) Run(context.get(), i);
    return GigabytesPerSecond(kBlocks * kBlockBytes, watch.Seconds());
  }

 private:
  std::span<std::byte> Plain(size_t block) const {
    return plain_.bytes().subspan(block * kBlockBytes, kBlockBytes);
  }
  std::span<std::byte> Sealed(size_t block) const {
    return sealed_.bytes().subspan(block * kBlockBytes, kBlockBytes);
  }

  Context NewContext(const EVP_CIPHER* cipher) const {
    Context context(EVP_CIPHER_CTX_new());
    AQ_CHECK(context != nullptr);
    AQ_CHECK(EVP_CipherInit_ex(context.get(), cipher, nullptr,
                               reinterpret_cast<const unsigned char*>(key_.secret.bytes().data()),
                               nullptr, opens_ ? 0 : 1) == 1);
    return context;
  }

  void Run(EVP_CIPHER_CTX* context, size_t block) const {
    const std::span<std::byte> from = opens_ ? Sealed(block) : Plain(block);
    const std::span<std::byte> to = opens_ ? Plain(block) : Sealed(block);
    const unsigned char iv[12] = {static_cast<unsigned char>(block)};
    int count = 0;
    AQ_CHECK(EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, iv, -1) == 1);
    AQ_CHECK(EVP_CipherUpdate(context, reinterpret_cast<unsigned char*>(to.data()), &count,
                              reinterpret_cast<const unsigned char*>(from.data()),
                              static_cast<int>(from.size())) == 1);
  }

  Status SealAll() {
    for (size_t first = 0; first < kBlocks; first += kBatch) {
      std::array<SealOp, kBatch> ops;
      for (size_t i = 0; i < kBatch; ++i) {
        ops[i] = {&metas_[first + i], Plain(first + i), Sealed(first + i)};
      }
      sealer_.Seal(key_, ops);
    }
    return Status();
  }

  Status OpenAll() {
    for (size_t first = 0; first < kBlocks; first += kBatch) {
      std::array<OpenOp, kBatch> ops;
      for (size_t i = 0; i < kBatch; ++i) {
        ops[i] = {&metas_[first + i], Sealed(first + i), Plain(first + i), {}};
      }
      sealer_.Open(key_, ops);
      for (const OpenOp& op : ops) AQ_RETURN_IF_ERROR(op.status);
    }
    return Status();
  }

  const bool opens_;
  BenchMemory plain_;
  BenchMemory sealed_;
  std::vector<BlockMeta> metas_;
  DataKey key_;
  Sealer sealer_{SystemRandom()};
};

Row SealRow(const std::string& name, bool opens) {
  return {.name = name,
          .unit = "GB/s",
          .limit_is = "OpenSSL's AES-256-GCM of the same 2 MiB blocks, keyed once, nothing besides",
          .goal = 0.95,
          .prepare = [opens](const BenchEnvironment&) { return SealContest::New(opens); },
          .rounds = 15,
          .quick_rounds = 5};
}

}  // namespace

void AddSealRows(std::vector<Row>* rows) {
  rows->push_back(SealRow("codec.seal", false));
  rows->push_back(SealRow("codec.seal.open", true));
}

}  // namespace aquifer
