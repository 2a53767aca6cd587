#ifdef QUERN_WITH_GLOO

#include "dist/gloo_notes.h"

#include <algorithm>

#include "dist/signal_block.h"

namespace quern {

namespace {

constexpr uint64_t kFarewell = 1, kNote = 3;  // slots below those of Gloo's collectives

constexpr std::chrono::hours kForever(8760);

}  // namespace

GlooNotes::GlooNotes(std::shared_ptr<gloo::Context> context, Receive receive,
                     std::function<void()> lost)
    : context_(std::move(context)),
      receive_(std::move(receive)),
      lost_(std::move(lost)),
      farewells_(static_cast<size_t>(context_->size)),
      in_(context_->createUnboundBuffer(&received_, sizeof(Note))),
      farewells_in_(context_->createUnboundBuffer(farewells_.data(), farewells_.size())) {
  for (int p = 0; p < context_->size; ++p) {
    if (p == context_->rank) continue;
    others_.push_back(p);
    farewells_in_->recv(p, kFarewell, static_cast<size_t>(p), 1);
  }
  if (!others_.empty()) in_->recv(others_, kNote, 0, sizeof(Note));
  const SignalBlock inherited;
  receiver_ = std::thread([this] { receive_notes(); });
  watcher_ = std::thread([this] { watch(); });
}

// Waits end when they are aborted.
GlooNotes::~GlooNotes() {
  in_->abortWaitRecv();
  farewells_in_->abortWaitRecv();
  receiver_.join();
  watcher_.join();
}

void GlooNotes::receive_notes() {
  try {
    int from = 0;
    while (in_->waitRecv(&from, kForever)) {
      const std::string text(received_.text.data(), std::min<size_t>(received_.size, kMostText));
      receive_(from, received_.kind, text);
      in_->recv(others_, kNote, 0, sizeof(Note));
    }
  } catch (const std::exception&) {  // the watcher acts
  }
}

void GlooNotes::watch() {
  try {
    while (farewells_in_->waitRecv(nullptr, kForever)) {
    }
  } catch (const std::exception&) {
    lost_();
  }
}

void GlooNotes::say_farewell(std::chrono::milliseconds limit) {
  char byte = 0;
  const auto out = context_->createUnboundBuffer(&byte, 1);
  for (const int p : others_) {
    try {
      out->send(p, kFarewell, 0, 1);
      out->waitSend(nullptr, limit);
    } catch (const std::exception&) {  // it left before
    }
  }
}

void GlooNotes::send(int to, NoteKind kind, const std::string& text) {
  const std::lock_guard lock(mutex_);
  Sent& sent = sent_.emplace_back();  // it stays until the end: a rank that hangs never takes it
  sent.note.kind = kind;
  sent.note.size = static_cast<uint8_t>(std::min(text.size(), kMostText));
  std::copy_n(text.data(), sent.note.size, sent.note.text.data());
  sent.to = to;
  try {
    sent.buffer = context_->createUnboundBuffer(&sent.note, sizeof(Note));
    sent.buffer->send(to, kNote, 0, sizeof(Note));
  } catch (const std::exception&) {  // the rank is gone
    sent_.pop_back();
  }
}

void GlooNotes::flush(int to, std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  for (auto sent = sent_.begin(); sent != sent_.end();) {
    if (sent->to != to) {
      ++sent;
      continue;
    }
    try {
      sent->buffer->waitSend(nullptr, limit);
    } catch (const std::exception&) {  // it left before
    }
    sent = sent_.erase(sent);
  }
}

}  // namespace quern

#endif
