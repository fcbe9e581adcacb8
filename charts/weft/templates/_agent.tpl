{{/*
The manifest of a fabric's DaemonSet. The operator adds what depends on the fabric: the name, the
fabric's label, the nodes, the roots as volumes, where the operator is.
*/}}
{{- define "weft.agent.template" -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: weft-agent
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/part-of: weft
    {{- include "weft.agent.selector" . | nindent 4 }}
spec:
  selector:
    matchLabels:
      {{- include "weft.agent.selector" . | nindent 6 }}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: {{ .Values.agent.maxUnavailable }}}
  template:
    metadata:
      labels:
        app.kubernetes.io/part-of: weft
        {{- include "weft.agent.selector" . | nindent 8 }}
        {{- with .Values.agent.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.agent.podAnnotations }}
      annotations: {{ toJson . }}
      {{- end }}
    spec:
      serviceAccountName: weft-agent
      automountServiceAccountToken: false
      enableServiceLinks: false
      # The data path is the node's own interfaces and ports.
      hostNetwork: true
      # The operator is found by address.
      dnsPolicy: Default
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}
      {{- with .Values.agent.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .Values.agent.tolerations }}
      tolerations: {{ toJson . }}
      {{- end }}
      securityContext:
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: agent
          image: {{ include "weft.image" (dict "root" . "who" "agent") }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          args:
            - --log={{ .Values.agent.log }}
            {{- $ports := .Values.agent.ports }}
            {{- include "weft.ports" (dict "who" "agent" "ports" $ports) }}
            - --control-port={{ $ports.control }}
            - --metrics-port={{ $ports.metrics }}
            {{- if .Values.metrics.auth }}
            - --metrics-auth
            {{- end }}
            - --operator-ca=/etc/weft/ca/ca.crt
            - --token=/var/run/secrets/weft.dev/token
            - --state=/var/lib/weft/agent
            {{- if .Values.devices.enabled }}
            - --engine-socket=/run/weft/engine.sock
            {{- end }}
            {{- if .Values.volumes.enabled }}
            - --volumes=/run/weft/volumes
            {{- end }}
            {{- with .Values.agent.objectStores }}
            {{- with .proxy }}
            - {{ printf "--store-proxy=%s" . | toJson }}
            {{- end }}
            {{- with .noProxy }}
            - {{ printf "--store-no-proxy=%s" (join "," .) | toJson }}
            {{- end }}
            {{- range .workloadIdentity }}
            - {{ printf "--workload-identity=%s=%s" .namespace .prefix | toJson }}
            {{- end }}
            {{- end }}
            {{- /* Besides these: what the operator adds, and what the variables say. */}}
            {{- $given := list "--log" "--control-port" "--metrics-port" "--metrics-auth" "--operator-ca" "--token" "--state"
              "--operator" "--fabric" "--engine-socket" "--volumes" "--pod-configuration" "--node" "--address"
              "--store-proxy" "--store-no-proxy" "--store-ca" "--workload-identity" }}
            {{- with include "weft.extraArgs" (dict "who" "agent" "args" .Values.agent.extraArgs "given" $given) }}
            {{- . | nindent 12 }}
            {{- end }}
          env:
            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            - {name: NODE_ADDRESS, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
            # A transfer's buffers go back to the system when it lets go of them: by default the C library's
            # threshold grows with them, and then they stay (mallopt(3), M_MMAP_THRESHOLD).
            - {name: MALLOC_MMAP_THRESHOLD_, value: "524288"}
            {{- with .Values.agent.objectStores.caBundle }}
            - {name: WEFT_STORE_CA, value: {{ toJson . }}}
            {{- end }}
            {{- $given := list "NODE_NAME" "NODE_ADDRESS" "MALLOC_MMAP_THRESHOLD_" "WEFT_STORE_CA" }}
            {{- with include "weft.extraEnv" (dict "who" "agent" "env" .Values.agent.extraEnv "given" $given) }}
            {{- . | nindent 12 }}
            {{- end }}
          # Ports of the node: a second agent on it stays Pending.
          ports:
            - {name: control, containerPort: {{ $ports.control }}}
            - {name: metrics, containerPort: {{ $ports.metrics }}}
          livenessProbe:
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 10
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: metrics}
            periodSeconds: 5
          resources: {{ toJson .Values.agent.resources }}
          securityContext:
            # Directories that the kubelet makes for a hostPath belong to root and are closed to others.
            runAsUser: 0
            runAsGroup: 0
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            {{- $features := .Values.agent.features }}
            capabilities:
              drop: [ALL]
              {{- if or $features.readFilesOfOthers $features.writeToDirectoriesOfOthers }}
              add:
                {{- if $features.readFilesOfOthers }}
                # Sources that belong to another user and are closed to others.
                - DAC_READ_SEARCH
                {{- end }}
                {{- if $features.writeToDirectoriesOfOthers }}
                # Destinations in directories that belong to another user.
                - DAC_OVERRIDE
                {{- end }}
              {{- end }}
          volumeMounts:
            - {name: state, mountPath: /var/lib/weft/agent}
            - {name: token, mountPath: /var/run/secrets/weft.dev, readOnly: true}
            - {name: ca, mountPath: /etc/weft/ca, readOnly: true}
            {{- if or .Values.devices.enabled .Values.volumes.enabled }}
            # The engine's socket, and the flags that the agent writes for the engine and the device plugin; the socket for the
            # driver of volumes, and which copies these show.
            - {name: devices, mountPath: /run/weft}
            {{- end }}
      volumes:
        {{- if or .Values.devices.enabled .Values.volumes.enabled }}
        - name: devices
          hostPath: {path: /run/weft, type: DirectoryOrCreate}
        {{- end }}
        # The node's private key and certificate: in memory, and gone with the pod.
        - name: state
          emptyDir: {medium: Memory, sizeLimit: 1Mi}
        # Says to the operator, and to nobody else, which pod on which node asks.
        - name: token
          projected:
            sources:
              - serviceAccountToken: {audience: weft.dev/operator, expirationSeconds: 3600, path: token}
        # By this an agent knows the operator. The operator makes it before it makes a DaemonSet; were it
        # missing, the kubelet would wait for it and say so.
        - name: ca
          configMap: {name: weft-ca}
{{- end }}
