// Activations in the host's memory between a forward and its backward. A GPU copies them there on a
// stream of its own while the forward goes on; in the backward they come back one group ahead of
// their use.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tensor/cuda_runtime.h"
#include "tensor/tensor.h"

namespace quern {

class HostStash : public std::enable_shared_from_this<HostStash> {
 public:
  class Group;

  static std::shared_ptr<HostStash> make() { return std::shared_ptr<HostStash>(new HostStash); }
  ~HostStash();
  HostStash(const HostStash&) = delete;
  HostStash& operator=(const HostStash&) = delete;

  // Begins to copy contiguous tensors, whose memory is free once the caller drops them and the
  // copies are done. The group has them until it is destroyed.
  std::shared_ptr<Group> put(const std::vector<Tensor>& tensors);

  // The tensors on the device, once: the group keeps none. Begins to bring back the group that was
  // put before this one.
  std::vector<Tensor> take(Group& group);

  int64_t bytes() const;  // of host memory, which is kept for the next forward

 private:
  HostStash() = default;
  void bring(Group& group);
  Tensor place_for(size_t index, size_t part, int64_t bytes);
  void fork();

  cuda::OwnedStream side_;  // of the copies, on GPUs
  cuda::Event forked_;
  std::vector<Group*> groups_;  // put and not destroyed, by index; null: destroyed
  // Host memory of a group's tensors. A captured graph copies to it: a place is never given back,
  // and one of another size does not replace it.
  std::map<std::pair<size_t, size_t>, std::vector<Tensor>> places_;
};

class HostStash::Group {
 public:
  explicit Group(std::shared_ptr<HostStash> stash) : stash_(std::move(stash)) {}
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

 private:
  friend class HostStash;
  struct Part {
    Shape shape;
    DType dtype = DType::f32;
    Tensor host;     // u8
    Tensor arrived;  // on the device; undefined until it is brought back
  };

  std::shared_ptr<HostStash> stash_;
  size_t index_ = 0;
  std::vector<Part> parts_;
  cuda::Event arrival_;
  bool is_coming_ = false, is_taken_ = false;
};

}  // namespace quern
