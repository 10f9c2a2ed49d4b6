// How much of what leaves a tier is to be written to the one below, for the sake of a drive that
// wears out by the write. As long as what was left unwritten is hardly ever missed, that is little;
// else it is the usual part. And where there are fewer hits than LRU has that writes everything,
// more is to be written (eagerness()), the further it is behind.
//
// Pure numbers.
#pragma once

#include <cstdint>

namespace aquifer {

class WriteShare {
 public:
  struct Request {
    uint64_t blocks = 0;
    uint64_t hits = 0;
    uint64_t lru_hits = 0;
    bool unwritten = false;  // The first block that is no hit was left unwritten.
  };
  void NoteRequest(const Request& request);

  // Of what is offered; WriteThreshold chooses which.
  double part() const;
  // How far beyond that, from 0 to 1, which is everything.
  double eagerness() const;

 private:
  void SetThrifty(bool thrifty);

  double asked_ = 0;
  double behind_ = 0;  // LRU's hits less ours, of those.
  bool thrifty_ = false;
  // Since that changed, in blocks.
  double since_ = 0;
  double unwritten_ = 0;  // That LRU had, and nobody else.
  double wait_ = 0;       // So long it is not thrifty again.
};

}  // namespace aquifer
