#include "reference/engine/engine.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/mutex.h"
#include "base/thread_name.h"
#include "reference/engine/sampling.h"
#include "reference/engine/sequence.h"
#include "reference/model/kernels.h"

namespace aquifer::reference {
namespace {

constexpr int kSoonMs = 1;      // A wait while a recall, a store or a request may need the thread.
constexpr int kRetryMs = 1000;  // A wait while there is no work; the cache may be back.
constexpr double kUnknownBlockMs = 20;

int64_t Now() { return SystemClock()->NowNanos(); }
double Milliseconds(int64_t nanos) { return static_cast<double>(nanos) / 1e6; }

class ThreadEngine final : public Engine {
 public:
  ThreadEngine(const EngineOptions& options, std::shared_ptr<const Weights> weights,
               const Tokenizer* tokenizer, uint32_t pages, const Layout& layout)
      : options_(options),
        tokenizer_(tokenizer),
        layout_(layout),
        model_(std::move(weights), ChosenKernels(), options.threads),
        kv_(model_.shape(), pages, options.page_tokens),
        pool_(pages, layout.tokens_per_block / options.page_tokens) {}

  ~ThreadEngine() override {
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
    }
    Wake();
    if (thread_.joinable()) thread_.join();
  }

  Status Start() {
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid()) return Status(Code::kUnavailable, "cannot make an event");
    AQ_ASSIGN_OR_RETURN(EngineMap map, CompileEngineLayout(layout_, 0, kv_.Describe()));
    offload_ = std::make_unique<Offload>(options_.offload, layout_, std::move(map), &pool_);
    thread_ = std::thread([this] { Run(); });
    return Status();
  }

  Result<RequestId> Submit(GenerateRequest request) override;
  void Cancel(RequestId request) override {
    {
      const MutexLock lock(&mutex_);
      cancelled_.insert(request);
    }
    Wake();
  }
  EngineFigures figures() const override {
    const MutexLock lock(&mutex_);
    return shown_;
  }
  const ModelShape& shape() const override { return model_.shape(); }
  const Layout& layout() const override { return layout_; }

 private:
  using SequencePtr = std::unique_ptr<Sequence>;

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = ::write(wake_.get(), &one, sizeof(one));
  }

  void Run();
  bool TakeMail();
  void ShowFigures();
  void Pause(bool restless);

  void AdmitWaiting();
  bool Admit(Sequence* sequence);
  void PrepareWaiting();
  std::span<const Key> RecallableKeys(const Sequence& sequence) const;
  void BeginRecall(Sequence* sequence);
  void AdvanceRecall(Sequence* sequence);
  bool WaitsForRecall(Sequence* sequence);
  static void SkipPresent(Sequence* sequence, size_t block_tokens);

  bool Step();
  std::vector<Sequence*> ChooseBatch(std::vector<Chunk>* chunks);
  size_t NextTokens(const Sequence& sequence, size_t budget) const;
  bool MakeRoom(Sequence* sequence);
  void Preempt(Sequence* sequence);
  void Absorb(std::span<Sequence* const> batch, std::span<const Chunk> chunks,
              std::span<const float> logits);
  void TakeToken(Sequence* sequence, std::span<const float> logits);
  void DeriveKeys(Sequence* sequence);
  void HandOnBlocks(Sequence* sequence);
  void ReportPrefill(std::span<const Chunk> chunks, int64_t nanos);
  void Retire();
  void GiveUpPages(Sequence* sequence);
  void Finish(Sequence* sequence, FinishReason reason);

  size_t block_tokens() const { return layout_.tokens_per_block; }
  size_t PagesFor(size_t tokens) const {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }
  size_t pool_tokens() const { return size_t{pool_.total()} * options_.page_tokens; }

  const EngineOptions options_;
  const Tokenizer* const tokenizer_;
  const Layout layout_;

  // Only the engine's thread touches the fields from here on.
  Model model_;
  KvPages kv_;
  PagePool pool_;
  std::unique_ptr<Offload> offload_;
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;  // In the order of their admission.
  EngineFigures figures_;
  double block_ms_ = kUnknownBlockMs;  // Recent time to compute one block.

  Descriptor wake_;
  mutable Mutex mutex_;
  std::vector<SequencePtr> mail_ AQ_GUARDED_BY(mutex_);
  std::set<RequestId> cancelled_ AQ_GUARDED_BY(mutex_);
  EngineFigures shown_ AQ_GUARDED_BY(mutex_);
  RequestId last_id_ AQ_GUARDED_BY(mutex_) = 0;
  size_t open_ AQ_GUARDED_BY(mutex_) = 0;
  bool stopping_ AQ_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Result<RequestId> ThreadEngine::Submit(GenerateRequest request) {
  const size_t most = std::min<size_t>(shape().max_positions, pool_tokens());
  if (request.prompt.empty()) return Status(Code::kInvalid, "the prompt is empty");
  if (request.prompt.size() >= most) {
    return Status(Code::kInvalid,
                  fmt::format("the prompt has {} tokens, and there is room for {} with the answer",
                              request.prompt.size(), most));
  }
  for (const uint32_t token : request.prompt) {
    if (token >= shape().vocabulary) {
      return Status(Code::kInvalid, fmt::format("there is no token {}; the vocabulary has {}",
                                                token, shape().vocabulary));
    }
  }
  auto sequence = std::make_unique<Sequence>();
  AQ_ASSIGN_OR_RETURN(sequence->root, DeriveRoot({.tenant = options_.tenant,
                                                  .layout_fingerprint = LayoutFingerprint(layout_),
                                                  .adapter_digest = {},
                                                  .cache_salt = request.cache_salt}));
  request.max_tokens = std::clamp<size_t>(request.max_tokens, 1, most - request.prompt.size());
  sequence->tokens = request.prompt;
  sequence->figures.prompt_tokens = request.prompt.size();
  sequence->random = request.seed;
  sequence->request = std::move(request);
  sequence->submitted_nanos = Now();
  DeriveKeys(sequence.get());
  RequestId id = 0;
  {
    const MutexLock lock(&mutex_);
    if (open_ >= options_.max_running + options_.max_waiting) {
      return Status(Code::kBusy, "too many requests are waiting; come back later");
    }
    ++open_;
    id = sequence->id = ++last_id_;
    mail_.push_back(std::move(sequence));
  }
  Wake();
  return id;
}

// ---- The thread ----

void ThreadEngine::Run() {
  NameThisThread("aq-engine");
  bool more = true;
  while (true) {
    if (!more) Pause(!running_.empty() || !waiting_.empty() || offload_->restless());
    if (!TakeMail()) break;
    const int64_t began = Now();
    offload_->Poll();
    AdmitWaiting();
    PrepareWaiting();
    for (const SequencePtr& sequence : running_) AdvanceRecall(sequence.get());
    more = Step();
    Retire();
    if (more) figures_.busy_nanos += Now() - began;
    ShowFigures();
  }
  for (const SequencePtr& sequence : running_) Finish(sequence.get(), FinishReason::kCancelled);
  for (const SequencePtr& sequence : waiting_) Finish(sequence.get(), FinishReason::kCancelled);
  offload_.reset();  // Destroyed while the memory that it borrows still exists.
}

// Takes in new and cancelled requests. Returns false if the engine is to end.
bool ThreadEngine::TakeMail() {
  std::set<RequestId> cancelled;
  {
    const MutexLock lock(&mutex_);
    for (SequencePtr& sequence : mail_) {
      ++figures_.requests;
      figures_.prompt_tokens += sequence->tokens.size();
      waiting_.push_back(std::move(sequence));
    }
    mail_.clear();
    std::swap(cancelled, cancelled_);
    if (stopping_) return false;
  }
  if (cancelled.empty()) return true;
  const auto end_those = [&](const SequencePtr& sequence) {
    if (!cancelled.contains(sequence->id)) return false;
    Finish(sequence.get(), FinishReason::kCancelled);
    return true;
  };
  std::erase_if(running_, end_those);
  std::erase_if(waiting_, end_those);
  return true;
}

void ThreadEngine::ShowFigures() {
  figures_.running = running_.size();
  figures_.waiting = waiting_.size();
  figures_.pages = pool_.total();
  figures_.pages_in_use = pool_.total() - pool_.available();
  figures_.evicted_blocks = pool_.evicted_blocks();
  figures_.offload = offload_->stats();
  const MutexLock lock(&mutex_);
  shown_ = figures_;
}

void ThreadEngine::Pause(bool restless) {
  pollfd events[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                      {.fd = offload_->event_fd(), .events = POLLIN, .revents = 0}};
  ::poll(events, events[1].fd < 0 ? 1 : 2, restless ? kSoonMs : kRetryMs);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t heard = ::read(wake_.get(), &count, sizeof(count));
}

// ---- Coming in ----

void ThreadEngine::AdmitWaiting() {
  offload_->SetPagesWanted(false);
  while (!waiting_.empty() && running_.size() < options_.max_running) {
    if (!Admit(waiting_.front().get())) return offload_->SetPagesWanted(true);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// Returns false if there are not enough pages yet.
bool ThreadEngine::Admit(Sequence* sequence) {
  const size_t pages = PagesFor(sequence->tokens.size() + 1);
  // Running sequences need room to grow. Only a sequence that runs alone may take all pages.
  const size_t spare = running_.empty() ? 0 : running_.size() * PagesFor(block_tokens());
  if (pages + spare > pool_.available()) return false;
  const std::span<const Key> keys = RecallableKeys(*sequence);
  const size_t resident = sequence->request.recall ? pool_.Adopt(keys, &sequence->table) : 0;
  // Adopted blocks can no longer be taken by Grow().
  if (!pool_.Grow(pages, &sequence->table)) {
    pool_.Release(sequence->keys, &sequence->table);
    return false;
  }
  sequence->ready = resident * block_tokens();
  sequence->handed_on = resident;
  sequence->present.assign(keys.size(), false);
  std::fill_n(sequence->present.begin(), resident, true);
  if (sequence->figures.preemptions == 0) {
    sequence->figures.resident_tokens = sequence->ready;
    figures_.resident_tokens += sequence->ready;
  } else {
    sequence->figures.recalled_after_preemption += sequence->ready;
  }
  BeginRecall(sequence);
  return true;
}

// The last token is always computed: its logits are needed.
std::span<const Key> ThreadEngine::RecallableKeys(const Sequence& sequence) const {
  return std::span(sequence.keys).first((sequence.tokens.size() - 1) / block_tokens());
}

// Reads ahead from drives for requests that wait for pages, while others compute. Only for some of
// them: otherwise the first blocks would leave DRAM again before their turn comes.
void ThreadEngine::PrepareWaiting() {
  const size_t ahead = std::min(waiting_.size(), options_.max_running);
  for (size_t i = 0; i < ahead; ++i) {
    Sequence* const sequence = waiting_[i].get();
    if (sequence->prepared || !sequence->request.recall) continue;
    const std::span<const Key> keys = RecallableKeys(*sequence);
    if (!offload_->Prepare(keys, pool_.Count(keys))) return;
    sequence->prepared = true;
  }
}

void ThreadEngine::BeginRecall(Sequence* sequence) {
  if (!sequence->request.recall) return;
  sequence->recall =
      offload_->Begin(RecallableKeys(*sequence), sequence->ready / block_tokens(), block_ms_);
  sequence->waiting_since_nanos = Now();
}

void ThreadEngine::AdvanceRecall(Sequence* sequence) {
  if (sequence->recall == nullptr) return;
  // A block that the engine began to compute meanwhile is not wanted. A damaged copy would have
  // overwritten its pages by the time the damage is found.
  const auto wanted = [this, sequence](size_t block) {
    return !sequence->present[block] && block * block_tokens() >= sequence->ready;
  };
  const auto arrived = [this, sequence](size_t block, TierKind tier) {
    sequence->present[block] = true;
    sequence->waiting_since_nanos = Now();
    RequestFigures& figures = sequence->figures;
    if (figures.preemptions > 0) figures.recalled_after_preemption += block_tokens();
    (tier == TierKind::kDram ? figures.dram_tokens : figures.nvme_tokens) += block_tokens();
    (tier == TierKind::kDram ? figures_.dram_tokens : figures_.nvme_tokens) += block_tokens();
  };
  offload_->Advance(sequence->recall.get(), sequence->table, wanted, arrived);
  SkipPresent(sequence, block_tokens());
  if (sequence->recall->done()) offload_->Abandon(std::move(sequence->recall));
}

void ThreadEngine::SkipPresent(Sequence* sequence, size_t block_tokens) {
  while (sequence->ready % block_tokens == 0 &&
         sequence->ready / block_tokens < sequence->present.size() &&
         sequence->present[sequence->ready / block_tokens]) {
    sequence->ready += block_tokens;
  }
}

// Returns true if the sequence waits for a block that is on its way. It waits no longer than
// computing the block takes: the drive may be slow, and the blocks behind it come meanwhile.
bool ThreadEngine::WaitsForRecall(Sequence* sequence) {
  const Recall* const recall = sequence->recall.get();
  if (recall == nullptr || recall->done()) return false;
  const size_t block = sequence->ready / block_tokens();
  if (block < recall->next_to_come()) return false;  // The fetch of this block has failed.
  if (recall->awaits_another()) sequence->waiting_since_nanos = Now();
  if (options_.offload.always_fetch) return true;
  if (Milliseconds(Now() - sequence->waiting_since_nanos) > block_ms_) {
    sequence->waiting_since_nanos = Now();
    return false;
  }
  return true;
}

// ---- A step ----

// Returns false if there was nothing to compute.
bool ThreadEngine::Step() {
  std::vector<Chunk> chunks;
  const std::vector<Sequence*> batch = ChooseBatch(&chunks);
  if (batch.empty()) return false;
  const int64_t began = Now();
  const std::span<const float> logits = model_.Forward(chunks, &kv_);
  ReportPrefill(chunks, Now() - began);
  ++figures_.steps;
  Absorb(batch, chunks, logits);
  return true;
}

std::vector<Sequence*> ThreadEngine::ChooseBatch(std::vector<Chunk>* chunks) {
  std::vector<Sequence*> decoding;
  std::vector<Sequence*> prefilling;
  // By index: MakeRoom() removes sequences from the end.
  for (size_t i = 0; i < running_.size(); ++i) {  // NOLINT(modernize-loop-convert)
    Sequence* const sequence = running_[i].get();
    if (WaitsForRecall(sequence)) continue;
    if (!MakeRoom(sequence)) break;  // This sequence was the youngest, and is gone.
    (sequence->tokens.size() - sequence->ready == 1 ? decoding : prefilling).push_back(sequence);
  }
  std::vector<Sequence*> batch;
  size_t budget = options_.step_tokens;
  for (const std::vector<Sequence*>* const some : {&decoding, &prefilling}) {
    for (Sequence* const sequence : *some) {
      const size_t count = NextTokens(*sequence, budget);
      if (count == 0) continue;
      const bool last = sequence->ready + count == sequence->tokens.size();
      chunks->push_back({.tokens = std::span(sequence->tokens).subspan(sequence->ready, count),
                         .position = static_cast<uint32_t>(sequence->ready),
                         .page_table = sequence->table.pages,
                         .logits = last ? LogitRows::kLast : LogitRows::kNone});
      batch.push_back(sequence);
      budget -= count;
    }
  }
  return batch;
}

// How many tokens to compute now: up to the next block that is there already.
size_t ThreadEngine::NextTokens(const Sequence& sequence, size_t budget) const {
  size_t end = std::min(sequence.tokens.size(), sequence.ready + budget);
  size_t block = sequence.ready / block_tokens() + 1;
  for (; block < sequence.present.size() && block * block_tokens() < end; ++block) {
    if (sequence.present[block]) end = block * block_tokens();
  }
  // While more blocks may come, at most one block at a time.
  if (sequence.recall != nullptr && !sequence.recall->done()) {
    end = std::min(end, (sequence.ready / block_tokens() + 1) * block_tokens());
  }
  return end - sequence.ready;
}

// Gets pages for all tokens of the sequence. If there are too few, the youngest sequence loses its
// pages. Returns false if that is this sequence.
bool ThreadEngine::MakeRoom(Sequence* sequence) {
  while (!pool_.Grow(PagesFor(sequence->tokens.size()), &sequence->table)) {
    SequencePtr youngest = std::move(running_.back());
    running_.pop_back();
    const bool own = youngest.get() == sequence;
    Preempt(youngest.get());
    waiting_.push_front(std::move(youngest));
    if (own) return false;
  }
  return true;
}

void ThreadEngine::Preempt(Sequence* sequence) {
  ++sequence->figures.preemptions;
  ++figures_.preemptions;
  sequence->prepared = false;
  GiveUpPages(sequence);
}

void ThreadEngine::GiveUpPages(Sequence* sequence) {
  offload_->Abandon(std::move(sequence->recall));
  pool_.Release(sequence->keys, &sequence->table);
  sequence->present.clear();
  sequence->ready = 0;
}

void ThreadEngine::Absorb(std::span<Sequence* const> batch, std::span<const Chunk> chunks,
                          std::span<const float> logits) {
  const size_t vocabulary = shape().vocabulary;
  for (size_t i = 0; i < batch.size(); ++i) {
    Sequence* const sequence = batch[i];
    const size_t count = chunks[i].tokens.size();
    const bool made_logits = chunks[i].logits == LogitRows::kLast;
    if (sequence->generated() == 0 || count > 1) {
      sequence->figures.computed_tokens += count;
      figures_.computed_tokens += count;
    }
    sequence->ready += count;
    SkipPresent(sequence, block_tokens());
    if (sequence->ready == sequence->tokens.size() && made_logits) {
      TakeToken(sequence, logits.first(vocabulary));
    }
    if (made_logits) logits = logits.subspan(vocabulary);
    HandOnBlocks(sequence);
  }
}

void ThreadEngine::TakeToken(Sequence* sequence, std::span<const float> logits) {
  const GenerateRequest& request = sequence->request;
  const uint32_t token = Sample(logits, request.temperature, request.top_p, &sequence->random);
  RequestFigures& figures = sequence->figures;
  if (figures.generated_tokens++ == 0) {
    figures.first_token_ms = Milliseconds(Now() - sequence->submitted_nanos);
  }
  ++figures_.generated_tokens;
  bool silent = false;
  const bool end = tokenizer_->IsEnd(token, &silent) && !request.ignore_end;
  sequence->tokens.push_back(token);
  DeriveKeys(sequence);
  const bool enough = request.on_token && !request.on_token({.token = token,
                                                             .silent = end && silent,
                                                             .logits = logits,
                                                             .figures = &sequence->figures});
  if (end || enough || sequence->generated() >= request.max_tokens) {
    sequence->ended = true;
    Finish(sequence, end || enough ? FinishReason::kEnd : FinishReason::kLength);
  }
}

void ThreadEngine::DeriveKeys(Sequence* sequence) {
  const size_t have = sequence->keys.size();
  const size_t whole = sequence->tokens.size() / block_tokens();
  if (whole == have) return;
  sequence->keys.resize(whole);
  const Key parent = have == 0 ? sequence->root : sequence->keys[have - 1];
  const Result<size_t> made =
      DeriveChain(parent, std::span(sequence->tokens).subspan(have * block_tokens()),
                  layout_.tokens_per_block, {}, std::span(sequence->keys).subspan(have));
  AQ_CHECK(made.ok() && *made == whole - have);
}

// Publishes complete blocks in the pool and stores them in the cache.
void ThreadEngine::HandOnBlocks(Sequence* sequence) {
  if (!sequence->request.store || sequence->table.pages.empty()) return;
  const size_t whole = sequence->ready / block_tokens();
  size_t first = sequence->handed_on;
  for (size_t block = first; block <= whole; ++block) {
    const bool came = block < sequence->present.size() && sequence->present[block];
    const bool ends = block == whole;
    const bool new_one =
        !ends && pool_.Publish(sequence->keys[block], block, &sequence->table) && !came;
    if (new_one) continue;
    offload_->Store(sequence->keys, sequence->root, first, block - first, sequence->table);
    first = block + 1;
  }
  sequence->handed_on = std::max(sequence->handed_on, whole);
}

// Reports only steps that were nearly all prompt: the time of others has other causes.
void ThreadEngine::ReportPrefill(std::span<const Chunk> chunks, int64_t nanos) {
  size_t tokens = 0;
  const Chunk* longest = chunks.data();
  for (const Chunk& chunk : chunks) {
    tokens += chunk.tokens.size();
    if (chunk.tokens.size() > longest->tokens.size()) longest = &chunk;
  }
  const size_t count = longest->tokens.size();
  if (count < 64 || tokens - count > count / 8) return;
  block_ms_ =
      Milliseconds(nanos) * static_cast<double>(block_tokens()) / static_cast<double>(count);
  offload_->ReportPrefill(static_cast<uint32_t>(count), longest->position, Milliseconds(nanos));
}

// ---- Going ----

void ThreadEngine::Retire() {
  std::erase_if(running_, [](const SequencePtr& sequence) { return sequence->ended; });
}

void ThreadEngine::Finish(Sequence* sequence, FinishReason reason) {
  if (sequence->ended) {
    HandOnBlocks(sequence);
    const size_t whole = sequence->ready / block_tokens();
    if (whole > 0) offload_->Hint(sequence->request.session, sequence->keys[whole - 1]);
  }
  if (reason == FinishReason::kCancelled) ++figures_.cancelled;
  GiveUpPages(sequence);
  {
    const MutexLock lock(&mutex_);
    --open_;
  }
  if (sequence->request.on_done) sequence->request.on_done(reason, sequence->figures);
}

}  // namespace

Result<std::unique_ptr<Engine>> StartEngine(const EngineOptions& options,
                                            std::shared_ptr<const Weights> weights,
                                            const Tokenizer* tokenizer) {
  const Layout layout =
      KvLayout(weights->shape, weights->digest, std::string(ChosenKernels().name));
  AQ_RETURN_IF_ERROR(ValidateLayout(layout));
  if (options.page_tokens == 0 || layout.tokens_per_block % options.page_tokens != 0) {
    return Status(Code::kInvalid, fmt::format("pages of {} tokens do not fit into blocks of {}",
                                              options.page_tokens, layout.tokens_per_block));
  }
  const uint32_t longest = weights->shape.max_positions / options.page_tokens;
  const uint32_t pages = options.pages > 0 ? options.pages : longest + longest / 2;
  auto engine =
      std::make_unique<ThreadEngine>(options, std::move(weights), tokenizer, pages, layout);
  AQ_RETURN_IF_ERROR(engine->Start());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace aquifer::reference
