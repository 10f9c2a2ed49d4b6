#include "cache/request/chain_inquiry.h"

#include <algorithm>

namespace aquifer {

void ChainInquiry::Reset(DurableTiers* tiers, const ChainNames& chain) {
  tiers_ = tiers != nullptr && tiers->usable() ? tiers : nullptr;
  chain_ = chain;
  asked_begin_ = asked_end_ = 0;
  absent_from_ = SIZE_MAX;
  asking_ = false;
  ++*question_;
}

DurablePlace ChainInquiry::At(size_t i, const std::function<void()>& on_answer) {
  if (tiers_ == nullptr) return {};
  const DurablePlace place = tiers_->Recall(chain_.id(i));
  if (place.answer == Presence::Answer::kAbsent) absent_from_ = std::min(absent_from_, i);
  if (place.answer != Presence::Answer::kUnknown || asking_) return place;
  if (i > absent_from_) return {};
  const bool asked = i >= asked_begin_ && i < asked_end_;
  if (asked) return tiers_->PlaceIn(found_, i - asked_begin_, chain_.id(i));
  asked_begin_ = i;
  asked_end_ = i + std::min(chain_.keys.size() - i, Presence::kMaxKeys);
  asking_ = true;
  ChainNames rest = chain_;
  rest.keys = chain_.keys.subspan(i);
  found_ = {};
  tiers_->Find(rest, [this, on_answer, question = question_,
                      asked_as = ++*question_](const DurableTiers::Found& found) {
    if (*question != asked_as || !asking_) return;
    asking_ = false;
    found_ = found;
    on_answer();
  });
  return place;
}

}  // namespace aquifer
