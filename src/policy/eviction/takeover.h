// Who decides what leaves a tier: the order that learns, or LRU, which it is not to be far behind.
//
// It is told after each request how many hits both had, and counts by how much LRU is ahead. That
// is not all there is to lose: what was given up although LRU would still have it (a *missed*
// block) may be asked for yet, and so may what is kept although LRU would not (an *extra* block).
// There are as many of the one as of the other; how often either is asked for in the end is counted
// too, and what that makes LRU gain is taken for lost already. Where more are missed than it was
// ever seen what became of, the rest counts as lost by a part: what all returns after the same long
// time tells nothing until it does. When it is more than a few blocks
// and a sliver of the requests, LRU decides for a while: for longer each time, so that what is lost
// by trying again stays small.
//
// Pure numbers.
#pragma once

#include <cstdint>

namespace aquifer {

class Takeover {
 public:
  bool lru_decides() const { return lru_decides_; }
  uint64_t times() const { return times_; }  // That LRU had to.

  // A request: hits are in blocks of which each saves as much as the mean one. `missed` are the
  // missed blocks that there are now. `uneven`: blocks differ in what they save, so that one
  // request may put it further behind than a few blocks; it has to be more than chance then.
  void NoteRequest(uint32_t blocks, double hits, double lru_hits, uint64_t missed,
                   bool uneven = false);
  // The same request once more, as an engine that waits makes it: nothing but LRU's time goes by.
  void NoteRepeated(uint32_t blocks);

  void NoteMissedAsked() { missed_.Add(1, 0); }
  // LRU would have given them up by now, too.
  void NoteMissedRightly(uint64_t blocks) { missed_.Add(0, static_cast<double>(blocks)); }
  void NoteExtraAsked() { extra_.Add(1, 0); }
  void NoteExtraGivenUp() {
    if (!lru_decides_) extra_.Add(0, 1);  // LRU gives up all of them.
  }

 private:
  // Of the last few thousand blocks.
  struct Outcomes {
    double asked = 0;
    double not_asked = 0;
    double ever = 0;  // So many there were.

    void Add(double more_asked, double more_not_asked);
    double count() const { return asked + not_asked; }
    double PartAsked() const { return asked / count(); }
  };

  // What LRU is likely to gain yet, in blocks.
  double ToCome(uint64_t missed) const;
  void Decide(bool lru);

  bool lru_decides_ = false;
  uint64_t times_ = 0;
  double asked_ever_ = 0;
  // Since it last changed who decides, in blocks.
  double asked_ = 0;
  double behind_ = 0;
  double squares_ = 0;  // The sum of those of what single uneven requests put it behind or ahead.
  double stay_ = 0;     // So long LRU decides, in blocks asked for.
  Outcomes missed_;
  Outcomes extra_;
};

}  // namespace aquifer
