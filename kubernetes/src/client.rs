//! How the API server is reached: kubeconfig or service account, time-outs, rate limit.
