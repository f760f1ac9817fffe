// Kernels after one another in a stream, see stof_cupy/jit/dependent.py.
#pragma once

namespace stof::ptx {

// Lets the next kernel be launched, once every CTA has said so or ended. Not before a CTA has what
// it needs of its SM: those of the next one take what is free.
__device__ __forceinline__ void let_next_kernel_come() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits for the end of every kernel before this one, whose writes are seen from here on, and lets
// the next one be launched. Every thread calls it before it touches what another kernel may write.
__device__ __forceinline__ void after_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace stof::ptx
